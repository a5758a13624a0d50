"""Trains a tiny job through the API server, as `helm test` does; runs in a pod.

Exits with 0 when the job has Succeeded, and deletes it. A failed job is kept for inspection.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

ACCOUNT = os.environ.get('ACCOUNT', '/var/run/secrets/kubernetes.io/serviceaccount')


def request(method, path, body=None):
    host = os.environ['KUBERNETES_SERVICE_HOST']
    if ':' in host:
        host = f'[{host}]'
    server = os.environ.get('SERVER', f'https://{host}:{os.environ["KUBERNETES_SERVICE_PORT"]}')
    with open(f'{ACCOUNT}/token', encoding='utf-8') as file:
        token = file.read().strip()
    call = urllib.request.Request(
        server + path, method=method, data=None if body is None else json.dumps(body).encode(),
        headers={'Authorization': f'Bearer {token}', 'Content-Type': 'application/json'})
    context = None
    if server.startswith('https'):
        context = ssl.create_default_context(cafile=f'{ACCOUNT}/ca.crt')
    with urllib.request.urlopen(call, timeout=10, context=context) as answer:
        return json.load(answer)


def condition(job, name):
    for one in job.get('status', {}).get('conditions', []):
        if one['type'] == name:
            return one
    return {}


def wait(path, deadline, interval):
    """Waits for the job's outcome and prints its progress. Returns 0 if it succeeded, else 1, and prints why."""
    shown, job = '', {}
    while time.monotonic() < deadline:
        try:
            job = request('GET', path)
        except OSError as error:  # the API server may be unavailable for a moment
            print(f'waiting: {error}', flush=True)
        status = job.get('status', {})
        line = f'{status.get("summary", "not seen yet")}, step {status.get("training", {}).get("step", 0)}'
        if line != shown:
            print(line, flush=True)
            shown = line
        if condition(job, 'Succeeded').get('status') == 'True':
            return 0
        failed = condition(job, 'Failed')
        if failed.get('status') == 'True':
            print(f'failed: {failed.get("reason")}: {failed.get("message")}', flush=True)
            return 1
        time.sleep(interval)
    print('the job did not end in time; its conditions:', flush=True)
    print(json.dumps(job.get('status', {}).get('conditions', []), indent=1), flush=True)
    return 1


def main():
    job = json.loads(os.environ['JOB'])
    jobs = f'/apis/sluice.dev/v1alpha1/namespaces/{os.environ["NAMESPACE"]}/trainingjobs'
    path = f'{jobs}/{job["metadata"]["name"]}'
    deadline = time.monotonic() + float(os.environ['TIMEOUT_SECONDS'])
    interval = float(os.environ.get('INTERVAL_SECONDS', '1'))
    try:  # a job of an earlier test
        request('DELETE', path + '?propagationPolicy=Foreground')
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
    while True:
        try:
            request('POST', jobs, job)
            break
        except urllib.error.HTTPError as error:
            if error.code != 409 or time.monotonic() > deadline:
                print(error.read().decode(errors='replace'), flush=True)
                return 1
            time.sleep(interval)  # the earlier job is still being deleted
    code = wait(path, deadline, interval)
    if code == 0:
        request('DELETE', path + '?propagationPolicy=Background')
    return code


if __name__ == '__main__':
    sys.exit(main())
