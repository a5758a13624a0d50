#!/usr/bin/env python3
"""Checks the rules of dependency of docs/architecture.md: tools/dependencies.py [ROOT].

Reads BUILD files and sources; builds nothing. Looks at the product only: tests, and what is testonly, may depend on
everything. Prints a line for each violation, which names the file and the rule, and exits with 1 if there is one.

An exception needs a reason, and is an error once nothing needs it.
"""
import ast
import pathlib
import re
import sys

TRANSPORT = ['services/transport', 'services/transport/security']
# The part of services/common without threads, clocks and files.
PURE_COMMON = ['services/common/.', 'services/common/arithmetic', 'services/common/text']
# What the packages below a path may depend on, in the order of the layers. The longest path counts.
# 'folder' means the folder and its rooms, 'folder/.' the folder alone.
LAYERS = {
    'include': [],
    'proto': [],
    'services/common': [],
    'services/protocol': ['proto', *PURE_COMMON],
    'services/transport/security': ['proto', 'services/common'],
    'services/transport': ['proto', 'services/common', 'services/protocol', 'services/transport/security'],
    'services/shell': ['proto', 'services/common', *TRANSPORT],
    'services/manifest': ['proto', 'services/common', 'services/protocol'],
    'services/checkpoint': ['proto', 'services/common', 'services/protocol', 'services/manifest'],
    'services/download': ['proto', 'services/common'],
    'services/snapshot': ['proto', 'services/common', 'services/protocol', 'services/checkpoint', *TRANSPORT],
    'services/execution': ['proto'],
    'services/coordinator/core': ['proto', *PURE_COMMON, 'services/protocol', 'services/checkpoint'],
    'services/coordinator': ['proto', 'services/common', 'services/protocol', 'services/manifest', 'services/checkpoint', *TRANSPORT,
                             'services/shell', 'services/coordinator/core'],
    'services/ps/optimizer': ['proto', *PURE_COMMON],
    'services/ps/plugins': ['services/common', 'include', 'proto', 'services/ps/optimizer'],
    # The pool of blocks has a mutex.
    'services/ps/core': ['proto', *PURE_COMMON, 'services/common/threads', 'services/protocol', 'services/execution',
                         'services/ps/optimizer'],
    'services/ps': ['proto', 'services/common', 'services/protocol', 'services/checkpoint', *TRANSPORT,
                    'services/shell', 'services/execution', 'services/ps/core', 'services/ps/plugins'],
    'services/worker/data': ['proto', 'services/common', 'services/protocol'],
    'services/worker/models': ['proto', 'services/common', 'services/protocol', 'services/checkpoint', 'services/worker/data'],
    'services/worker/compute': ['proto', 'services/common', 'services/protocol', 'services/checkpoint', 'services/worker/data',
                                'services/worker/models'],
    'services/worker/collective': ['proto', 'services/common', 'services/protocol', *TRANSPORT],
    'services/worker/core': ['proto', *PURE_COMMON, 'services/protocol', 'services/worker/collective',
                             'services/worker/compute'],
    'services/execution/worker': ['proto', 'services/common', 'services/protocol', *TRANSPORT,
                                  'services/execution', 'services/worker/compute', 'services/worker/models'],
    'services/worker': ['proto', 'services/common', 'services/protocol', 'services/manifest', 'services/checkpoint', 'services/download',
                        *TRANSPORT, 'services/shell', 'services/execution/worker', 'services/worker/collective',
                        'services/worker/compute', 'services/worker/core', 'services/worker/data'],
    'services/worker/library': ['include', 'proto', 'services/common', 'services/protocol', 'services/checkpoint',
                                *TRANSPORT, 'services/shell', 'services/snapshot', 'services/worker',
                                'services/worker/compute', 'services/worker/core'],
    'services/execution/shard': ['proto', 'services/common', 'services/protocol', *TRANSPORT,
                                 'services/execution', 'services/ps', 'services/ps/core', 'services/worker/compute',
                                 'services/worker/models'],
    'operator/crd': ['services/manifest'],
    'operator/policy': ['proto', *PURE_COMMON, 'services/protocol'],
    'operator/kube': ['services/common'],
    'operator/runtime': ['services/common', 'operator/kube'],
    'operator/reconciler': ['proto', 'services/common', 'services/protocol', 'services/checkpoint', *TRANSPORT, 'services/manifest',
                            'operator/policy', 'operator/kube', 'operator/runtime'],
    'operator': ['services/common', *TRANSPORT, 'operator/kube', 'operator/reconciler', 'operator/runtime'],
    'cli': ['proto', 'services/common', 'services/protocol', 'services/checkpoint', 'services/download',
            'services/snapshot', *TRANSPORT, 'services/ps/optimizer', 'services/ps/plugins', 'services/worker/data', 'services/manifest', 'operator/policy',
            'operator/kube', 'operator/reconciler'],
}
# The rooms of each folder in their order, and the rooms before it that each room may use. '.' is the folder itself.
# Outside the folder, a room may use what LAYERS gives the folder; a package that may use the folder may use its rooms.
ROOMS = {
    'services/common': {
        '.': '',
        'arithmetic': '.',
        'text': '.',
        'threads': '.',
        'tls': '.',
        'time': '. threads',
        'io': '. threads',
        'process': '. text threads io',
    },
    'services/protocol': {
        'samples': '',
        '.': 'samples',
        'codec': '.',
    },
    'services/transport': {
        'security': '',
        'frames': '',
        '.': 'security frames',
        'server': '. security',
        'streams': '. security frames server',
    },
    'services/coordinator/core': {
        'base': '',
        'decisions': 'base',
        'facts': 'base decisions',
        'storage': 'base facts',
        'lifecycle': 'base decisions facts',
        'views': 'base decisions facts lifecycle',
        'evaluation': 'base decisions facts',
        'snapshots': 'base decisions facts evaluation',
        'members': 'base facts snapshots',
        '.': 'base decisions facts storage lifecycle views evaluation snapshots members',
    },
    'services/ps/core': {
        'base': '',
        'state': 'base',
        'session': 'base state',
        'serving': 'base state session',
        'replication': 'base state session',
        'training': 'base state session serving replication',
        'membership': 'base state session',
        '.': 'base state session serving replication training membership',
    },
    'services/worker/core': {
        'base': '',
        'gradients': 'base',
        '.': 'base gradients',
    },
    'cli': {
        'common': '',
        'local': 'common',
        'run': 'common local',
        'plan': 'common',
        'cluster': 'common',
        'chaos': 'common local run',
        'verify': 'common local run',
        '.': 'common local run plan cluster chaos verify',
    },
}
# More files in one folder are divided into rooms.
MOST_FILES = 45
# Packages without a rule: they use the product, and the product does not use them.
FREE = ('bench', 'docs', 'examples', 'helm', 'images', 'k8s', 'python', 'tests', 'third_party', 'tools')

ROLES = ('services/coordinator', 'services/ps', 'services/worker')
CORES = ('services/coordinator/core', 'services/ps/core', 'services/ps/optimizer', 'services/worker/core',
         'operator/policy')
TORCH = ('services/worker/compute', 'services/worker/models', 'services/execution/worker', 'services/execution/shard')
# Decisions of other packages, which are as pure as a core.
PURE = ('operator/reconciler/decide.cc', 'operator/reconciler/conditions.cc', 'operator/reconciler/report.cc')
# What must not reach LibTorch through any of its dependencies.
WITHOUT_TORCH = ('//services/ps:sluice-ps', '//services/coordinator:sluice-coordinator', '//cli:sluice',
                 '//operator:sluice-operator', '//services/worker/core:worker_core', '//services/execution/shard:host',
                 '//services/worker/library:worker')
GRPC = ('services/transport', 'services/snapshot', 'services/coordinator', 'services/ps', 'services/worker', 'services/execution/shard',
        'services/execution/worker', 'operator/reconciler', 'cli')

# (rule, file): reason.
EXCEPTIONS = {
    ('environment', 'services/transport/endpoint.cc'): 'MASTER_ADDR and MASTER_PORT, the same for three mains',
    ('environment', 'services/transport/security/security_flags.cc'): 'defaults of flags, the same for three mains',
    ('environment', 'services/transport/grpc_settings.cc'): 'gRPC takes its settings from the environment',
    ('environment', 'services/worker/compute/torch_kernels.cc'): 'LibTorch takes its kernels from the environment',
    ('environment', 'cli/cluster/credential_plugin.cc'): 'a child process is given this environment',
    ('environment', 'cli/run_program.cc'): 'a child process is given this environment',
    ('files', 'services/ps/plugins/plugins.cc'): 'looks for libraries, which the loader opens',
    ('files', 'services/transport/grpc_settings.cc'): 'reads the limit of memory in /sys',
    ('files', 'services/transport/security/job_secret.cc'): 'a secret is created for its owner alone',
    ('files', 'services/transport/frames/shared_memory.cc'): 'opens memory of another process in /proc',
    ('files', 'services/worker/collective/connection_options.cc'): 'lists its own sockets in /proc',
    ('files', 'services/worker/data/file.cc'): 'compressed input is read by zlib',
    ('files', 'services/worker/data/text_dataset.cc'): 'asks whether an input is there',
    ('files', 'services/worker/models/torch_script.cc'): "LibTorch writes the user's model",
    ('files', 'services/worker/trainer.cc'): "asks whether the user's directories are there",
    ('files', 'services/download/download_cache.cc'): 'locks between processes',
    ('files', 'services/manifest/manifest.cc'): "reads the user's file, which no test loses",
    ('files', 'cli/cluster/port_forward.cc'): 'redirects a child process',
    ('files', 'cli/chaos/link_relay.cc'): 'reads the port of a process that starts',
    ('files', 'cli/chaos/socket_owner.cc'): "reads the kernel's list of sockets in /proc",
    ('files', 'cli/common/log_follower.cc'): 'reads logs while they grow',
    ('files', 'cli/local/child_processes.cc'): 'redirects a child process',
    ('files', 'cli/local/job_directory.cc'): 'locks between processes, and reads the end of a log',
    ('files', 'cli/local/local_job.cc'): 'the size of a log',
    ('files', 'cli/main.cc'): 'the path of this program',
    ('files', 'cli/manifest_commands.cc'): "reads the user's file",
    ('clock', 'services/transport/server/connection_guard.cc'): 'the time of a thread, not the clock',
    ('clock', 'cli/local/job_directory.cc'): 'waits for another process, under a lock of the file system',
    ('clock', 'services/worker/collective/reducer.cc'): 'the deadline of a call',
}

INCLUDE = re.compile(r'^\s*#\s*include ([<"][^>"]+)[>"]', re.M)
CORE = re.compile(r'\babsl::Now\(|\b\w+_clock::now\(|\bclock_gettime\(|\bstd::this_thread\b|\bstd::(?:j?thread|async)\b|'
                  r'\bstd::(?:[io]?fstream|filesystem|cout|cerr|condition_variable\w*)\b|\bf(?:open|printf)\(|\bpthread_\w+\(|'
                  r'\bdlopen\(|\bgetenv\(|\bsocket\(|\bstd::random_device\b|\babsl::\w*BitGen\b|\bs?rand\(')
CORE_INCLUDES = ('<thread', '<fstream', '<filesystem', '<iostream', '<condition_variable', '<pthread.h', '<dlfcn.h', '<sys/',
                 '"services/common/time/', '"services/common/io/', '"services/common/process/',
                 '"services/common/threads/serial_executor.h', '"services/transport/', '<grpc')
FILES = re.compile(r'\bstd::[io]?fstream\b|\b(?:fopen|gzopen)\(|\bfilesystem::(?:exists|create_\w+|remove\w*|rename|copy\w*|'
                   r'directory_iterator|recursive_directory_iterator|file_size|is_\w+|space|status|canonical|read_symlink)\(|'
                   r'(?<![\w.>:])(?:::)?(?:open|openat|creat|unlink|mkdir|rmdir|rename)\(|\bstd::(?:rename|remove)\(\w+\.c_str')
CLOCK = re.compile(r'\b(?:steady|system|high_resolution)_clock::now\(|\b(?:clock_gettime|gettimeofday)\(|[^\w.]time\(nullptr\)')
MUTEX = re.compile(r'\bstd::(?:\w+_)?mutex\b|\babsl::Mutex\b')
ENVIRONMENT = re.compile(r'\b(?:secure_)?getenv\(|\bsetenv\(|\benviron\b')


class Rule:
    """A rule of a BUILD file: label, package, sources, labels of its dependencies."""

    def __init__(self, call, package, directory):
        self.package = package
        self.values = {keyword.arg: strings(keyword.value, directory) for keyword in call.keywords}
        self.kind = getattr(call.func, 'id', '')
        self.label = f'//{package}:{"".join(self.values.get("name", []))}'
        testonly = any(keyword.arg == 'testonly' and getattr(keyword.value, 'value', True) for keyword in call.keywords)
        self.product = not testonly and not self.kind.endswith('_test')
        self.dependencies = [absolute(label, package) for attribute in ('deps', 'implementation_deps')
                             for label in self.values.get(attribute, [])]
        # Sources of another package are a dependency too.
        self.dependencies += [label for label in self.values.get('srcs', []) + self.values.get('hdrs', [])
                              if label.startswith('//')]
        self.files = [name for attribute in ('srcs', 'hdrs') for name in self.values.get(attribute, [])
                      if not name.startswith(('//', ':', '@'))]


def strings(value, directory):
    """The strings in an expression of a BUILD file; a glob gives the files that it matches."""
    if isinstance(value, ast.Constant):
        return [value.value] if isinstance(value.value, str) else []
    if isinstance(value, ast.Call) and getattr(value.func, 'id', '') == 'glob':
        excluded = [name for keyword in value.keywords if keyword.arg == 'exclude' for name in strings(keyword.value, directory)]
        files = [file for pattern in strings(value.args[0], directory) for file in directory.glob(pattern)]
        return sorted(file.relative_to(directory).as_posix() for file in files
                      if not any(file.match(pattern) for pattern in excluded))
    return [text for child in ast.iter_child_nodes(value) for text in strings(child, directory)]


def absolute(label, package):
    if label.startswith(':'):
        return f'//{package}{label}'
    return label if ':' in label else f'{label}:{label.rsplit("/", 1)[-1]}'


def package_of(label):
    return label.split('//')[-1].split(':')[0]


def below(package, paths):
    return any(package == path or package.startswith(path + '/') for path in paths)


def may_use_grpc(package):
    return below(package, GRPC + FREE) and not below(package, CORES)


def layer_of(package):
    """The longest path of LAYERS and ROOMS that the package is below, or None."""
    found = [path for path in ROWS if below(package, [path])]
    return max(found, key=len) if found else None


def without_comments(text):
    """The code of a source, without comments and strings."""
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', '', text, flags=re.S)


def with_rooms(layers, rooms):
    """The layers, with a row for each room."""
    paths = {folder: {room: folder if room == '.' else f'{folder}/{room}' for room in inside} for folder, inside in rooms.items()}
    rows = {path: [room for used in may_use for room in (paths[used].values() if used in paths else [used.removesuffix('/.')])]
            for path, may_use in layers.items()}
    for folder, inside in rooms.items():
        outside, before = rows[folder], set()
        for room, may_use in inside.items():
            used = may_use.split()
            if not before.issuperset(used):
                raise ValueError(f'ROOMS: {folder}: {room} may use {may_use}, and not each of them stands before it')
            before.add(room)
            path = paths[folder][room]
            rows[path] = (rows[path] if path in layers else outside) + [paths[folder][other] for other in used]
    return rows


ROWS = with_rooms(LAYERS, ROOMS)


def read_rules(root):
    rules = []
    for build in sorted(root.rglob('BUILD')):
        package = build.parent.relative_to(root).as_posix().lstrip('.')
        if package.startswith(('third_party', 'bazel-', '.')) or any(part.startswith('bazel-') for part in build.parts):
            continue
        for statement in ast.parse(build.read_text()).body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                rule = Rule(statement.value, package, build.parent)
                if 'name' in rule.values and rule.kind != 'package':
                    rules.append(rule)
    return rules


class Check:

    def __init__(self, root, exceptions):
        self.root = root
        self.rules = [rule for rule in read_rules(root) if rule.product]
        self.exceptions = exceptions
        self.used = set()
        self.problems = []

    def report(self, rule, file, text):
        if (rule, file) in self.exceptions:
            self.used.add((rule, file))
        else:
            self.problems.append(f'{file}: {rule}: {text}')

    def run(self):
        self.check_packages()
        self.check_circles()
        self.check_torch()
        self.check_sources()
        self.check_folders()
        for rule, file in sorted(set(self.exceptions) - self.used):
            self.problems.append(f'{file}: {rule}: an exception that nothing needs: take it out of tools/dependencies.py')
        return self.problems

    def check_packages(self):
        """Layers, roles, and the operator's general parts."""
        for rule in self.rules:
            for label in rule.dependencies:
                self.check_edge(f'{rule.package}/BUILD', rule.package, package_of(label), f'{rule.label} depends on {label}')
                if label == '//third_party:grpc' and not may_use_grpc(rule.package):
                    self.report('grpc', f'{rule.package}/BUILD', f'{rule.label} depends on {label}')

    def check_edge(self, file, package, used, text):
        if package == used or below(package, FREE):
            return
        if below(used, ['third_party']) or not used:
            return
        own = layer_of(package)
        if own is None:
            self.report('layers', file, f'{package} has no place in LAYERS of tools/dependencies.py')
            return
        if below(used, FREE):
            self.report('layers', file, f'{text}, which is not the product')
            return
        if layer_of(used) in ROWS[own] + [own]:
            return
        if below(package, ROLES) and below(used, ROLES):
            mine = next(role for role in ROLES if below(package, [role]))
            if not below(used, [mine]):
                self.report('roles', file, f'{text}: a role depends on no other role')
                return
        if below(package, ('operator/kube', 'operator/runtime')):
            self.report('operator', file, f'{text}: these packages know nothing of TrainingJobs')
            return
        self.report('layers', file, f'{text}; {own} may use {", ".join(ROWS[own]) or "nothing"}')

    def check_circles(self):
        edges = {}
        for rule in self.rules:
            for label in rule.dependencies:
                used = package_of(label)
                if used != rule.package and not below(used, ['third_party']):
                    edges.setdefault(rule.package, set()).add(used)
        state = {}

        def visit(package, trail):
            if state.get(package) == 'done':
                return
            if package in trail:
                circle = trail[trail.index(package):] + [package]
                self.report('circles', f'{package}/BUILD', ' -> '.join(circle))
                return
            for used in sorted(edges.get(package, ())):
                visit(used, trail + [package])
            state[package] = 'done'

        for package in sorted(edges):
            visit(package, [])

    def check_torch(self):
        by_label = {rule.label: rule for rule in self.rules}
        torch = '//third_party:torch'
        for rule in self.rules:
            if torch in rule.dependencies and not below(rule.package, TORCH + FREE):
                self.report('libtorch', f'{rule.package}/BUILD', f'{rule.label} links LibTorch')
        for label in WITHOUT_TORCH:
            trail = {label: None}
            todo = [label]
            while todo:
                current = todo.pop()
                for used in by_label[current].dependencies if current in by_label else []:
                    if used not in trail:
                        trail[used] = current
                        todo.append(used)
            if torch in trail:
                path, at = [], torch
                while at is not None:
                    path.append(at)
                    at = trail[at]
                self.report('libtorch', f'{package_of(label)}/BUILD', ' <- '.join(path))

    def check_folders(self):
        for top in ('services', 'operator', 'cli', 'tests', 'python'):
            for folder in [self.root / top, *sorted((self.root / top).rglob('*/'))]:
                count = sum(path.is_file() for path in folder.iterdir()) if folder.is_dir() else 0
                if count > MOST_FILES:
                    self.report('rooms', folder.relative_to(self.root).as_posix(),
                                f'{count} files; a folder with more than {MOST_FILES} is divided into rooms')

    def check_sources(self):
        for rule in self.rules:
            if below(rule.package, FREE):
                continue
            for name in rule.files:
                path = self.root / rule.package / name
                if path.suffix in ('.cc', '.h') and path.is_file():
                    self.check_source(f'{rule.package}/{name}', rule.package, path.read_text())

    def check_source(self, file, package, text):
        includes = INCLUDE.findall(text)
        code = without_comments(text)
        for include in includes:
            if include[0] == '"' and '/' in include:
                used = include[1:].rsplit('/', 1)[0]
                # A directory of a package without a BUILD file of its own belongs to the package above.
                while used and not (self.root / used / 'BUILD').is_file():
                    used = used.rpartition('/')[0]
                if used:
                    self.check_edge(file, package, used, f'includes {include[1:]}')
            if (include.startswith(('<grpc', '"grpc')) or include.endswith('.grpc.pb.h')):
                if not may_use_grpc(package):
                    self.report('grpc', file, f'includes {include[1:]}')
            if package == 'operator/kube' or package == 'operator/runtime':
                if include.startswith('"proto/'):
                    self.report('operator', file, f'includes {include[1:]}')
        if below(package, CORES) or file in PURE:
            for include in includes:
                if include.startswith(CORE_INCLUDES):
                    self.report('core', file, f'includes {include[1:]}: a core has no clock, thread, file or socket')
            for found in sorted(set(CORE.findall(code))):
                self.report('core', file, f'{found.rstrip("(")}: a core has no clock, thread, file, socket or randomness')
        if not below(package, ['services/common']):
            for rule, pattern, text in (
                    ('files', FILES, 'files are reached through services/common/io/file_util.h'),
                    ('clock', CLOCK, 'clocks are read through services/common/time/clock.h'),
                    ('mutex', MUTEX, 'mutexes are those of services/common/threads/mutex.h')):
                match = pattern.search(code)
                if match:
                    self.report(rule, file, f'{match[0].strip().rstrip("(")}: {text}')
        match = ENVIRONMENT.search(code)
        if match and not file.endswith('/main.cc'):
            self.report('environment', file, f'{match[0].rstrip("(")}: the environment is read in main only')


def check(root, exceptions=None):
    """The violations below a root, a line each."""
    return sorted(set(Check(pathlib.Path(root), EXCEPTIONS if exceptions is None else exceptions).run()))


def main(arguments):
    problems = check(arguments[0] if arguments else pathlib.Path(__file__).resolve().parent.parent)
    for problem in problems:
        print('  ' + problem)
    if problems:
        print('The rules are in docs/architecture.md, "Rules of dependency".')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
