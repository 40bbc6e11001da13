// SPDX-License-Identifier: Apache-2.0

package sysdump

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// PeerOf returns the process that listens on a UNIX socket, 0 if it is in another
// PID namespace.
func PeerOf(socket string) (pid int, err error) {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var optErr error
	err = raw.Control(func(fd uintptr) { peer, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, optErr); err != nil {
		return 0, fmt.Errorf("find the process behind %s: %w", socket, err)
	}
	return int(peer.Pid), nil
}

// IsAgent returns an error unless a process is an agent: the number of one that
// is gone may be another's by now.
func IsAgent(pid int) error {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return fmt.Errorf("the agent's process %d is gone: %w", pid, err)
	}
	if args := strings.Split(string(data), "\x00"); !slices.Contains(args, "agent") {
		return fmt.Errorf("the agent's process %d is gone: there is another of that number", pid)
	}
	return nil
}

// Process adds what the kernel says of the agent's process.
func Process(a *Archive, pid int) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	a.Text("agent/flags.txt", func(w io.Writer) error { return writeList(w, filepath.Join(proc, "cmdline"), nil) })
	a.Text("agent/environment.txt", func(w io.Writer) error { return writeList(w, filepath.Join(proc, "environ"), ofAgent) })
	a.file("agent/process.txt", filepath.Join(proc, "status"))
	a.file("agent/limits.txt", filepath.Join(proc, "limits"))
	a.Text("agent/memory.txt", func(w io.Writer) error { return writeMemory(w, proc) })
}

// ofAgent reports whether a variable is one that the agent reads.
func ofAgent(variable string) bool {
	return strings.HasPrefix(variable, "SLUICE_") || strings.HasPrefix(variable, "NODE_NAME=") || strings.HasPrefix(variable, "POD_NAME=")
}

// writeList writes what the kernel lists with zero bytes between, a line each.
func writeList(w io.Writer, path string, wanted func(string) bool) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for _, text := range strings.Split(strings.TrimRight(string(data), "\x00"), "\x00") {
		if wanted != nil && !wanted(text) {
			continue
		}
		if _, err := fmt.Fprintln(w, text); err != nil {
			return err
		}
	}
	return nil
}

// writeMemory writes what the cgroup of a process takes, and may.
func writeMemory(w io.Writer, proc string) error {
	data, err := os.ReadFile(filepath.Join(proc, "cgroup"))
	if err != nil {
		return err
	}
	_, path, found := bytes.Cut(bytes.TrimSpace(data), []byte("0::"))
	if !found {
		return errors.New("the process is in no cgroup of version 2")
	}
	dir := filepath.Join("/sys/fs/cgroup", string(path))
	if _, err := fmt.Fprintf(w, "# %s\n", dir); err != nil {
		return err
	}
	var errs error
	for _, name := range []string{"memory.current", "memory.peak", "memory.max", "memory.high", "memory.events", "memory.stat", "memory.pressure", "cpu.stat", "pids.current"} {
		value, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // not in every kernel, nor in the root cgroup
		}
		errs = errors.Join(errs, err)
		if _, err := fmt.Fprintf(w, "%s:\n%s", name, value); err != nil {
			return err
		}
	}
	return errs
}

// logTail is of how many bytes the end of a log is taken.
const logTail = 4 << 20

// containerLogs is where the kubelet has the logs of the agent's containers.
const containerLogs = "/var/log/containers/sluice-*.log"

// Log adds the end of the agent's log: of a file, or if none is named of what the
// kubelet or the journal have of it.
func Log(a *Archive, path string) {
	if path != "" {
		a.Text("agent/log.txt", func(w io.Writer) error { return writeTail(w, path) })
		return
	}
	paths, _ := filepath.Glob(containerLogs) // fails for a wrong pattern only
	for _, path := range paths {
		a.Text("agent/"+filepath.Base(path), func(w io.Writer) error { return writeTail(w, path) })
	}
	journal, err := exec.LookPath("journalctl")
	if err != nil || len(paths) > 0 {
		return
	}
	a.Text("agent/journal.txt", func(w io.Writer) error {
		cmd := exec.Command(journal, "--no-pager", "--quiet", "--lines=20000", "--unit=sluice")
		cmd.Stdout, cmd.WaitDelay = w, time.Second
		if err := cmd.Start(); err != nil {
			return err
		}
		late := time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
		defer late.Stop()
		return cmd.Wait()
	})
}

func writeTail(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", path)
	}
	if rest := info.Size() - logTail; rest > 0 {
		if _, err := f.Seek(rest, io.SeekStart); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "# %d bytes before this are left out\n", rest); err != nil {
			return err
		}
	}
	_, err = io.Copy(w, io.LimitReader(f, logTail))
	return err
}

// State adds what the agent keeps in its state directory.
func State(a *Archive, dir string) {
	for _, name := range []string{"sysctls.json", "sluice.lock"} {
		a.file("agent/state/"+name, filepath.Join(dir, name))
	}
	a.Text("agent/state/files.txt", func(w io.Writer) error {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		slices.Sort(names)
		if len(names) > 0 {
			fmt.Fprintln(w, strings.Join(names, "\n"))
		}
		return err
	})
}
