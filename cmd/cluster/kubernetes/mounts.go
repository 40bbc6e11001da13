// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// machineSysctls are parameters of the machine that kubelet would change. The
// node has files in their place.
var machineSysctls = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// mountRoot gives the node a root file system of its own: the machine's, with
// the node's changes over it, and the file systems that a node has.
func (n *Node) mountRoot() error {
	roots := n.cluster.path(rootsDir, n.Name)
	root := filepath.Join(roots, "merged")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	layers := fmt.Sprintf("lowerdir=/,upperdir=%s/upper,workdir=%[1]s/work", roots)
	if err := mount("overlay", root, "overlay", 0, layers); err != nil {
		return err
	}
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
		data                   string
	}{
		{"proc", "proc", "proc", 0, ""},
		{"/dev", "dev", "", unix.MS_BIND | unix.MS_REC, ""},
		{"sysfs", "sys", "sysfs", 0, ""}, // of the node's network namespace
		{"/sys/fs/cgroup", "sys/fs/cgroup", "", unix.MS_BIND | unix.MS_REC, ""},
		{"bpf", "sys/fs/bpf", "bpf", 0, ""},
		{"tmpfs", "run", "tmpfs", 0, "mode=755"},
		{"tmpfs", "tmp", "tmpfs", 0, ""},
		// Not in the overlay: containerd makes overlays of what is there.
		{n.diskPath("var"), "var", "", unix.MS_BIND, ""},
		// Last, as they may be below one of those.
		{n.cluster.options.Bin, n.cluster.options.Bin, "", unix.MS_BIND | unix.MS_REC, ""},
		{n.cluster.options.Dir, n.cluster.options.Dir, "", unix.MS_BIND | unix.MS_REC, ""},
	} {
		target := filepath.Join(root, m.target)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := mount(m.source, target, m.fstype, m.flags, m.data); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	if err := pivot(root); err != nil {
		return err
	}
	if err := coverSysctls(); err != nil {
		return err
	}
	// So that what is mounted later appears in pods that ask for it.
	return mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// pivot makes a mount point the root, and lets go of the former one.
func pivot(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change root to %s: %w", root, err)
	}
	// Now the former root is mounted over the new one.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount former root: %w", err)
	}
	return os.Chdir("/")
}

func coverSysctls() error {
	for _, name := range machineSysctls {
		value, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err != nil {
			return err
		}
		file := filepath.Join("/run/sysctls", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, value, 0o644); err != nil {
			return err
		}
		if err := mount(file, filepath.Join("/proc/sys", name), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}
