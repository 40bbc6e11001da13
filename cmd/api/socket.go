// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrSocketInUse says that something answers on the socket already.
var ErrSocketInUse = errors.New("another agent answers there")

// maxSocketPath is what fits into sockaddr_un with its final zero.
const maxSocketPath = 107

// listenUnix listens on a socket that only its owner can connect to. A socket
// left over by a process that is gone is replaced.
func listenUnix(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("listen on socket %s: the path is longer than %d bytes", path, maxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("create directory of socket: %w", err)
	}
	if err := removeStaleSocket(path); err != nil {
		return nil, fmt.Errorf("listen on socket %s: %w", path, err)
	}
	// The mode is set before bind creates the file, so that it never is open to others.
	lc := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var err error
		return errors.Join(conn.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on socket %s: %w", path, err)
	}
	return l, nil
}

func removeStaleSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("the file there is not a socket")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
		return ErrSocketInUse
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("find out whether it is in use: %w", err)
	}
	return os.Remove(path)
}
