// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The oldest kernel that has what the programs attach to.
const (
	minKernelMajor = 6
	minKernelMinor = 6
)

// Probe returns an error that says in words why kernel maps cannot be used, or
// nil. It mounts the BPF file system if it is not yet.
func Probe(bpffs string) error {
	if err := checkKernelVersion(); err != nil {
		return err
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "sluice_probe", Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 4, MaxEntries: 1, Flags: mapFlags,
	})
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("no permission to create BPF maps: %s", missingCapabilities())
	case err != nil:
		return fmt.Errorf("create a BPF map: %w", err)
	}
	m.Close()
	if err := mountBPFFS(bpffs); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(bpffs, pinDir), 0o700); err != nil {
		return fmt.Errorf("create directory of pinned maps: %w", err)
	}
	return nil
}

func checkKernelVersion() error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("read kernel version: %w", err)
	}
	return checkRelease(unix.ByteSliceToString(name.Release[:]))
}

// checkRelease returns an error unless a kernel release such as 6.18.44-amd64 is new enough.
func checkRelease(release string) error {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("parse kernel version %q: %w", release, err)
	}
	if major < minKernelMajor || major == minKernelMajor && minor < minKernelMinor {
		return fmt.Errorf("kernel %s is too old: %d.%d or newer is needed", release, minKernelMajor, minKernelMinor)
	}
	return nil
}

// missingCapabilities says which capabilities the process lacks for BPF maps.
func missingCapabilities() string {
	const unknown = "CAP_BPF or CAP_SYS_ADMIN is needed"
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return unknown
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		field, ok := strings.CutPrefix(lines.Text(), "CapEff:")
		if !ok {
			continue
		}
		caps, err := strconv.ParseUint(strings.TrimSpace(field), 16, 64)
		if err != nil {
			return unknown
		}
		if caps&(1<<unix.CAP_BPF|1<<unix.CAP_SYS_ADMIN) == 0 {
			return "the process has neither CAP_BPF nor CAP_SYS_ADMIN"
		}
		return "a security policy forbids it, although the process has the capability"
	}
	return unknown
}

// isBPFFS reports whether a BPF file system is mounted on a path.
func isBPFFS(path string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); errors.Is(err, unix.ENOENT) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("look at %s: %w", path, err)
	}
	return uint32(st.Type) == unix.BPF_FS_MAGIC, nil
}

// mountBPFFS mounts a BPF file system on a path unless there is one.
func mountBPFFS(path string) error {
	if mounted, err := isBPFFS(path); err != nil || mounted {
		return err
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("mount BPF file system: %w", err)
	}
	if err := unix.Mount("bpf", path, "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount BPF file system on %s: %w", path, err)
	}
	return nil
}
