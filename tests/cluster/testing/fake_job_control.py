"""Coordinators of simulated pods: one server that answers at the address of every simulated pod.

    python3 -m tests.cluster.testing.fake_job_control DIRECTORY

It runs in the control plane's network namespace, where all addresses of simulated pods are made local. In DIRECTORY:

    jobs.json     the coordinators' answers: {"default": {...}, "10.245.0.7": {...}}, each a JobProgress as JSON, and
                  "hang": true (does not answer)
    calls.jsonl   the calls that they got: one line for each SetDesired

A coordinator that got a request to suspend answers that it is suspended, whatever jobs.json has.
"""

import concurrent.futures
import json
import pathlib
import sys
import threading
import time

from google.protobuf import json_format
import grpc

from proto import jobcontrol_pb2

PORT = 29500


class Server:

    def __init__(self, directory):
        self._directory = pathlib.Path(directory)
        self._lock = threading.Lock()
        self._desired = {}  # address -> the newest SetDesiredRequest

    def _address(self, context):
        # The authority that the client dialled: only by it can coordinators be distinguished.
        return context._rpc_event.call_details.host.decode().rpartition(':')[0]  # pylint: disable=protected-access

    def _said(self, address):
        jobs = json.loads((self._directory / 'jobs.json').read_text())
        return dict(jobs.get(address, jobs['default']))

    def set_desired(self, request, context):
        address = self._address(context)
        if self._said(address).get('hang'):
            context.abort(grpc.StatusCode.UNAVAILABLE, 'this coordinator hangs')
        with self._lock:
            self._desired[address] = request
            with open(self._directory / 'calls.jsonl', 'a', encoding='utf-8') as calls:
                calls.write(json.dumps({
                    'time': time.time(), 'address': address, 'workers': request.workers, 'shards': request.shards,
                    'suspend': request.suspend, 'deaths': [json_format.MessageToDict(death) for death in request.deaths],
                }) + '\n')
        return jobcontrol_pb2.SetDesiredResponse()

    def get_progress(self, _, context):
        address = self._address(context)
        said = self._said(address)
        if said.pop('hang', False):
            time.sleep(30)
            context.abort(grpc.StatusCode.UNAVAILABLE, 'this coordinator hangs')
        with self._lock:
            desired = self._desired.get(address)
        if desired is not None and desired.suspend:
            said['phase'] = 'SUSPENDED'
        return json_format.ParseDict(said, jobcontrol_pb2.JobProgress())


def main():
    server = Server(sys.argv[1])
    handlers = {
        'SetDesired': grpc.unary_unary_rpc_method_handler(
            server.set_desired, request_deserializer=jobcontrol_pb2.SetDesiredRequest.FromString,
            response_serializer=jobcontrol_pb2.SetDesiredResponse.SerializeToString),
        'GetProgress': grpc.unary_unary_rpc_method_handler(
            server.get_progress, request_deserializer=jobcontrol_pb2.GetProgressRequest.FromString,
            response_serializer=jobcontrol_pb2.JobProgress.SerializeToString),
    }
    listening = grpc.server(concurrent.futures.ThreadPoolExecutor(32))
    listening.add_generic_rpc_handlers((grpc.method_handlers_generic_handler('sluice.v1.JobControl', handlers),))
    listening.add_insecure_port(f'0.0.0.0:{PORT}')
    listening.start()
    print('listening', flush=True)
    listening.wait_for_termination()


if __name__ == '__main__':
    main()
