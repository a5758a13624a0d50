import pathlib
import re
import tempfile
import unittest

from tools import dependencies
from tools import unittest_main


def library(name, deps=(), srcs=(), kind='cc_library', **more):
    lists = {'deps': list(deps), 'srcs': list(srcs), **more}
    return f'{kind}(name = "{name}", ' + ', '.join(f'{key} = {value!r}' for key, value in lists.items()) + ')\n'


class DependenciesTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def check(self, exceptions=None):
        return dependencies.check(self.root, exceptions or {})

    def assert_one(self, *words):
        problems = self.check()
        self.assertEqual(len(problems), 1, problems)
        for word in words:
            self.assertIn(word, problems[0])

    def source(self, package, code, name='file.cc'):
        self.write(f'{package}/BUILD', library('x', srcs=[name]))
        self.write(f'{package}/{name}', code)

    def test_what_is_allowed_has_no_problem(self):
        self.write('services/common/BUILD', library('check'))
        self.write('services/protocol/BUILD', library('ids', ['//services/common']))
        self.source('services/transport', '#include <grpcpp/grpcpp.h>\n#include "services/protocol/ids.h"\n')
        self.assertEqual(self.check(), [])

    def test_a_layer_depends_on_layers_below_only(self):
        self.write('services/protocol/BUILD', library('ids'))
        self.write('services/common/BUILD', library('check', ['//services/protocol']))
        self.assert_one('services/common/BUILD: layers', '//services/protocol')

    def test_an_include_counts_as_a_dependency(self):
        self.write('services/protocol/BUILD', library('ids'))
        self.source('services/common', '#include "services/protocol/ids.h"\n')
        self.assert_one('services/common/file.cc: layers', 'services/protocol/ids.h')

    def test_the_product_does_not_depend_on_tests_nor_on_packages_without_a_place(self):
        self.write('tests/testing/BUILD', library('jobs'))
        self.write('services/common/BUILD', library('check', ['//tests/testing:jobs']))
        self.assert_one('services/common/BUILD: layers', 'not the product')
        self.write('services/common/BUILD', library('check'))
        self.write('services/new/BUILD', library('thing', ['//services/common']))
        self.assert_one('services/new/BUILD: layers', 'no place')

    def test_no_role_depends_on_another(self):
        self.write('services/ps/core/BUILD', library('shard_core'))
        self.write('services/coordinator/core/BUILD', library('coordinator_core', ['//services/ps/core:shard_core']))
        self.assert_one('services/coordinator/core/BUILD: roles', '//services/ps/core:shard_core')

    def test_a_room_depends_on_rooms_before_it_only(self):
        self.write('services/ps/core/base/BUILD', library('base'))
        self.write('services/ps/core/state/BUILD', library('state', ['//services/ps/core/base']))
        self.write('services/ps/core/BUILD', library('shard_core', ['//services/ps/core/state']))
        self.write('services/ps/BUILD', library('shard_server', ['//services/ps/core/state', '//services/ps/core:shard_core']))
        self.assertEqual(self.check(), [])
        self.write('services/ps/core/base/BUILD', library('base', ['//services/ps/core/training']))
        self.assert_one('services/ps/core/base/BUILD: layers', '//services/ps/core/training')
        self.write('services/ps/core/base/BUILD', library('base', ['//services/transport/frames']))
        self.assert_one('services/ps/core/base/BUILD: layers', '//services/transport/frames')

    def test_a_folder_holds_45_files(self):
        for number in range(45):
            self.write(f'services/protocol/deep/file{number}.h', '')
        self.assertEqual(self.check(), [])
        self.write('services/protocol/deep/BUILD', '')
        self.assert_one('services/protocol/deep: rooms', '46 files')

    def test_rooms_are_listed_in_order(self):
        with self.assertRaisesRegex(ValueError, 'a: state may use base training, and not each of them stands before it'):
            dependencies.with_rooms({'a': []}, {'a': {'base': '', 'state': 'base training', 'training': ''}})

    def test_tests_may_depend_on_everything(self):
        self.write('services/ps/core/BUILD', library('shard_core'))
        self.write('services/coordinator/core/BUILD',
                   library('core_test', ['//services/ps/core:shard_core'], kind='cc_test') +
                   library('harness', ['//services/ps/core:shard_core'], testonly=True))
        self.assertEqual(self.check(), [])

    def test_only_some_packages_link_libtorch(self):
        self.write('services/worker/compute/BUILD', library('torch_engine', ['//third_party:torch']))
        self.assertEqual(self.check(), [])
        self.write('services/protocol/BUILD', library('ids', ['//third_party:torch']))
        self.assert_one('services/protocol/BUILD: libtorch', '//services/protocol')

    def test_a_shard_reaches_no_libtorch_through_others(self):
        self.write('services/worker/models/BUILD', library('model', ['//third_party:torch']))
        self.write('services/execution/shard/BUILD', library('layers', ['//services/worker/models:model']) +
                   library('host', [':layers']))
        self.assert_one('services/execution/shard/BUILD: libtorch', '//third_party:torch <- //services/worker/models:model')

    def test_only_some_packages_include_grpc(self):
        self.source('services/protocol', '#include <grpcpp/grpcpp.h>\n')
        self.assert_one('services/protocol/file.cc: grpc', 'grpcpp/grpcpp.h')

    def test_a_core_links_no_grpc(self):
        self.write('services/ps/core/BUILD', library('shard_core', ['//third_party:grpc']))
        self.assert_one('services/ps/core/BUILD: grpc', '//services/ps/core:shard_core')

    def test_sources_of_a_glob_are_checked(self):
        self.write('services/ps/core/BUILD', 'cc_library(name = "x", srcs = ["a.h"] + glob(["*.cc"], exclude = ["*_test.cc"]))\n')
        self.write('services/ps/core/file_test.cc', '#include <thread>\n')
        self.assertEqual(self.check(), [])
        self.write('services/ps/core/file.cc', '#include <thread>\n')
        self.assert_one('services/ps/core/file.cc: core', 'includes thread')

    def test_dependencies_of_an_implementation_and_rules_that_are_not_testonly_count(self):
        self.write('services/protocol/BUILD', library('ids'))
        self.write('services/common/BUILD', library('check', implementation_deps=['//services/protocol'], testonly=False))
        self.assert_one('services/common/BUILD: layers', '//services/protocol')

    def test_the_decisions_of_the_operator_are_as_pure_as_a_core(self):
        self.source('operator/reconciler', 'absl::Time now = absl::Now();\n', 'decide.cc')
        self.assert_one('operator/reconciler/decide.cc: core', 'absl::Now')

    def test_a_core_includes_no_generated_service(self):
        self.write('proto/BUILD', library('control'))
        self.source('services/ps/core', '#include "proto/control.grpc.pb.h"\n')
        self.assert_one('services/ps/core/file.cc: grpc', 'proto/control.grpc.pb.h')

    def test_a_core_reads_no_clock(self):
        self.source('services/worker/core', 'absl::Time Now() { return absl::Now(); }\n')
        self.assert_one('services/worker/core/file.cc: core', 'absl::Now')

    def test_a_core_has_no_file_thread_or_library_of_its_own(self):
        for code in ('#include <thread>\n', '#include "services/common/io/file_util.h"\n', 'auto* x = dlopen(path, 0);\n',
                     '#include "services/common/time/clock.h"\n', 'int x = rand();\n', 'absl::BitGen random;\n',
                     'pthread_create(&thread, nullptr, &Run, nullptr);\n', 'std::condition_variable changed;\n'):
            with self.subTest(code=code):
                self.source('services/coordinator/core', code)
                self.assert_one('services/coordinator/core/file.cc: core')

    def test_files_are_reached_through_file_util(self):
        for code in ('std::ifstream in(path);\n', 'int fd = open(path, O_RDONLY);\n', 'std::filesystem::remove_all(path);\n'):
            with self.subTest(code=code):
                self.source('services/checkpoint', code)
                self.assert_one('services/checkpoint/file.cc: files')

    def test_clocks_and_mutexes_are_those_of_common(self):
        self.source('services/checkpoint', 'auto now = std::chrono::steady_clock::now();\n')
        self.assert_one('services/checkpoint/file.cc: clock')
        self.source('services/checkpoint', 'std::mutex mutex;\n')
        self.assert_one('services/checkpoint/file.cc: mutex')

    def test_the_environment_is_read_in_main_only(self):
        self.source('services/worker', 'const char* x = std::getenv("X");\n', 'main.cc')
        self.assertEqual(self.check(), [])
        self.source('services/worker', 'const char* x = std::getenv("X");\n')
        self.assert_one('services/worker/file.cc: environment', 'getenv')

    def test_kube_and_runtime_know_nothing_of_training_jobs(self):
        self.write('services/manifest/BUILD', library('training_job'))
        for package in ('operator/kube', 'operator/runtime'):
            with self.subTest(package=package):
                self.write(f'{package}/BUILD', library('client', ['//services/manifest:training_job']))
                self.assert_one(f'{package}/BUILD: operator', '//services/manifest:training_job')
                self.write(f'{package}/BUILD', library('client'))

    def test_packages_form_no_circle(self):
        self.write('services/worker/core/testing/BUILD', library('a', ['//services/worker/core:core']))
        self.write('services/worker/core/BUILD', library('core', ['//services/worker/core/testing:a']))
        self.assert_one('circles', 'services/worker/core -> services/worker/core/testing -> services/worker/core')

    def test_comments_and_strings_are_not_code(self):
        self.source('services/worker/core', '// absl::Now() is not called.\nconst char* x = "std::getenv(";\n')
        self.assertEqual(self.check(), [])

    def test_an_exception_excuses_its_file_and_has_to_be_needed(self):
        self.source('services/checkpoint', 'std::ifstream in(path);\n')
        exceptions = {('files', 'services/checkpoint/file.cc'): 'a reason'}
        self.assertEqual(self.check(exceptions), [])
        self.source('services/checkpoint', 'int x;\n')
        problems = self.check(exceptions)
        self.assertEqual(len(problems), 1)
        self.assertRegex(problems[0], 'files: an exception that nothing needs')

    def test_every_exception_gives_a_reason(self):
        for key, reason in dependencies.EXCEPTIONS.items():
            self.assertTrue(re.search(r'\w+ \w+', reason), key)


if __name__ == '__main__':
    unittest_main.main()
