"""The descriptors through which fisub and a worker talk."""

import array
import fcntl
import json
import os
import resource
import socket
import sys

MAX_FILES = 16  # in one request


class Pipes:
    """The protocol's descriptors, moved to numbers that a solution is unlikely to close or inherit, and copies of the
    standard ones to restore."""

    def __init__(self):
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.base = max(16, min(soft, 1024) - 64) if soft != resource.RLIM_INFINITY else 960
        self.requests, self.replies = socket.socket(fileno=self.move(3)), self.move(4)
        self.standard = [self.move(1), self.move(2)]
        os.close(3)
        os.close(4)
        self.kept = [self.requests.fileno(), self.replies, *self.standard]
        os.register_at_fork(after_in_child=self.close)

    def move(self, fd):
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, self.base)

    def close(self):
        for fd in self.kept:
            try:
                os.close(fd)
            except OSError:
                pass

    def read(self):
        """Returns the next request and its descriptors, or None at the end."""
        parts, files = [], []
        while not parts or b"\n" not in parts[-1]:
            data, messages, _, _ = self.requests.recvmsg(1 << 16, socket.CMSG_SPACE(4 * MAX_FILES), socket.MSG_CMSG_CLOEXEC)
            if not data:
                return None
            parts.append(data)
            for _, _, content in messages:
                fds = array.array("i")
                fds.frombytes(content[:len(content) - len(content) % fds.itemsize])
                for fd in fds:
                    files.append(self.move(fd))
                    os.close(fd)
        return json.loads(b"".join(parts)), files

    def write(self, reply):
        data = memoryview(json.dumps(reply).encode() + b"\n")
        while data:
            data = data[os.write(self.replies, data):]

    def settle(self):
        """Flushes printed output, and restores descriptors that a solution closed or replaced."""
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            try:
                stream.flush()
            except BaseException:
                pass
        for fd, kept in zip((1, 2), self.standard):
            os.dup2(kept, fd)
