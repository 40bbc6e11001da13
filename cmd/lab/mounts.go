// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// mounts is a mount namespace with a BPF file system, that nothing outside sees.
// What is pinned there outlives the agent, but not the lab.
type mounts struct {
	path string // of the BPF file system, inside
	ns   int    // file descriptors, -1 if not open
	root int
}

func newMounts(path string) (*mounts, error) {
	m := &mounts{path: path, ns: -1, root: -1}
	err := onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		if err := os.MkdirAll(path, 0o700); err != nil {
			return err
		}
		if err := unix.Mount("bpf", path, "bpf", 0, "mode=0700"); err != nil {
			return fmt.Errorf("mount %s: %w", path, err)
		}
		if m.root, err = unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		m.ns, err = unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		m.close()
		return nil, fmt.Errorf("make mount namespace: %w", err)
	}
	return m, nil
}

// enter puts the calling thread, which must end afterwards, into the namespace.
func (m *mounts) enter() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare file system attributes: %w", err)
	}
	if err := unix.Setns(m.ns, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter mount namespace: %w", err)
	}
	return nil
}

// outside is the path of the BPF file system for this process.
func (m *mounts) outside() string { return "/proc/self/fd/" + strconv.Itoa(m.root) }

func (m *mounts) close() {
	for _, fd := range []*int{&m.ns, &m.root} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}
