"""The largest values that a schema of a custom resource allows."""

BYTES = 400000  # of one value: etcd takes no request beyond 1.5 MiB


def sized_fields(schema, path=()):
    """The paths of the lists, maps and strings that have a limit; '[]' and '{}' are items of a list and values of a map."""
    if any(limit in schema for limit in ('maxItems', 'maxLength', 'maxProperties')):
        yield path
    for name, child in schema.get('properties', {}).items():
        yield from sized_fields(child, path + (name,))
    if 'items' in schema:
        yield from sized_fields(schema['items'], path + ('[]',))
    if isinstance(schema.get('additionalProperties'), dict):
        yield from sized_fields(schema['additionalProperties'], path + ('{}',))


def schema_at(schema, path):
    for part in path:
        schema = schema['items'] if part == '[]' else schema['additionalProperties'] if part == '{}' else schema['properties'][part]
    return schema


def has_rules(schema, path):
    """Whether a rule of CEL sees the field: one of its own, or of an object around it."""
    return any('x-kubernetes-validations' in schema_at(schema, path[:i]) for i in range(1, len(path) + 1))


def places(value, path):
    """The objects and lists that hold the field in this value, each with the key; the field itself may be absent."""
    if len(path) == 1:
        keys = range(len(value)) if path[0] == '[]' else list(value) if path[0] == '{}' else [path[0]]
        yield from ((value, key) for key in keys)
    elif path[0] in ('[]', '{}'):
        for item in value if path[0] == '[]' else value.values():
            yield from places(item, path[1:])
    elif isinstance(value.get(path[0]), (dict, list)):
        yield from places(value[path[0]], path[1:])


def largest(schema, example, number=0, limit=BYTES):
    """Candidates for the largest value, for texts of different forms; `number` makes texts of one list distinct."""
    if schema['type'] == 'string':
        room = min(schema.get('maxLength', 0), limit) - len(example or '')
        if 'enum' in schema:
            return [example or schema['enum'][0]]
        if room < 0:
            return [example]
        unique = f'{number:x}'[:room] if number else ''
        filling = room - len(unique)
        address, mark, checksum = (example or '').partition('#')
        return [(example or '') + 'a' * filling + unique, (example or '') + '0' * filling + unique,
                address + 'a' * filling + unique + mark + checksum]
    if schema['type'] == 'array':
        count, items = schema.get('maxItems', len(example or [])), schema['items']
        models = example or [None]
        return [[_pick(items, models[i % len(models)], i + 1, limit // max(count, 1), way) for i in range(count)] for way in range(3)]
    if isinstance(schema.get('additionalProperties'), dict):
        count, values = schema.get('maxProperties', 0), schema['additionalProperties']
        return [{f'{key}{i}': _pick(values, None, i, limit // max(count, 1), 0) for i in range(count)} for key in 'k']
    if schema['type'] == 'object':
        made = dict(example or {})
        for name, child in schema.get('properties', {}).items():
            if name in made or name in schema.get('required', ()):
                made[name] = _pick(child, made.get(name), number, limit // max(len(made), 1), 0)
        return [made]
    return [example if example is not None else schema.get('maximum', schema.get('minimum', 1))]


def _pick(schema, example, number, limit, way):
    candidates = largest(schema, example, number, limit)
    return candidates[min(way, len(candidates) - 1)]
