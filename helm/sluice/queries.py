"""The queries of the chart's rules and dashboards, for tests."""

import dataclasses
import json
import re

import yaml


@dataclasses.dataclass(frozen=True)
class Query:
    place: str  # file and panel, or the rule's name, for messages
    expression: str
    # An alert's query returns nothing while all is well.
    alert: bool = False


def rules(chart):
    """Every rule, in the order of the files."""
    for path in sorted((chart / 'files/rules').glob('*.yaml')):
        for group in yaml.safe_load(path.read_text())['groups']:
            yield from group['rules']


def all_queries(chart):
    for rule in rules(chart):
        yield Query(rule.get('alert') or rule['record'], rule['expr'], 'alert' in rule)
    for path in sorted((chart / 'files/dashboards').glob('*.json')):
        for panel in json.loads(path.read_text())['panels']:
            for target in panel.get('targets', []):
                yield Query(f'{path.stem}: {panel["title"]} {target["refId"]}', target['expr'])
    for path in sorted((chart / 'files/consoles').glob('*.html')):
        for text in sorted(set(re.findall(r'"((?:[^"\\]|\\.)*sluice[_:](?:[^"\\]|\\.)*)"', path.read_text()))):
            # %s is replaced by selectors, %q by a value in quotes.
            expression = re.sub(r'%s,?', '', text.replace('\\"', '"')).replace('=%q', '=~".*"')
            yield Query(path.name, expression)


def metric_names(expression):
    """Names of metrics and of recorded series."""
    return re.findall(r'\bsluice[_:][a-z][\w:]*', re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression))


def filled_in(expression):
    """The expression with every dashboard variable replaced by a match of everything."""
    return (expression.replace('$__rate_interval', '1m').replace('$namespace', '.*').replace('$training_job', '.*'))


def selectors(expression):
    """Each series of an expression, with its labels."""
    return sorted(set(re.findall(r'\b(?:sluice[_:]|up\b)[\w:]*(?:\{[^}]*\})?', expression)))


def is_operators(query):
    """Whether the operator serves all metrics of a query."""
    names = metric_names(query.expression)
    if not names:
        return 'sluice-operator' in query.expression
    return all(re.match(r'sluice[_:]operator_', name) for name in names)
