"""The picture of a terminal has its text and colors. The pictures themselves are made by hand, on a quiet machine."""

import importlib.util
import pathlib
import shutil
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

from tests.monitoring import pictures
from tools import unittest_main


@unittest.skipIf(shutil.which('tmux') is None or importlib.util.find_spec('rich') is None,
                 'Debian\'s packages tmux and python3-rich are not there')
class PicturesTest(unittest.TestCase):

    def test_picture_of_a_terminal_has_its_text_and_colors(self):
        with tempfile.TemporaryDirectory() as directory:
            program = r"printf 'gone\r\033[Jworker-1 \033[32mtrains\033[0m\n██░░ <50 %%>\n'; sleep 100"
            with pictures.Terminal(pathlib.Path(directory), ['sh', '-c', program]) as terminal:
                screen = terminal.wait_for('50 %')
        picture = ElementTree.fromstring(pictures.svg(screen, 'sluice run job.yaml'))
        runs = {element.text.replace('\N{NO-BREAK SPACE}', ' ').strip(): element.get('class')
                for element in picture.iter('{http://www.w3.org/2000/svg}text')}
        self.assertLessEqual({'sluice run job.yaml', 'worker-1', 'trains', '██░░ <50 %>'}, runs.keys())
        self.assertNotIn('gone', ' '.join(runs))
        self.assertNotEqual(runs['trains'], runs['worker-1'])


if __name__ == '__main__':
    unittest_main.main()
