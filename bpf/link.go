// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf/link"
)

// DetachPinned ends the link that is pinned under a path, if there is one, and
// removes the pin. The program does not run any more when it returns.
func DetachPinned(path string) error {
	if l, err := link.LoadPinnedLink(path, nil); err == nil {
		_ = l.Detach() // the link of a device that is gone refuses; without its pin every link ends
		l.Close()
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove link: %w", err)
	}
	return nil
}

// PinnedLinks returns the names of the links in a directory, none if there is no
// such directory.
func PinnedLinks(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// lockPinDir takes the lock of all that agents have pinned in a BPF file system; there is none if
// they have not pinned anything.
func lockPinDir(bpffs string) (*os.File, error) {
	if mounted, err := isBPFFS(bpffs); err != nil || !mounted {
		return nil, err
	}
	lock, err := lockDir(filepath.Join(bpffs, pinDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return lock, err
}

// CheckUnused reports whether agents have pinned something in a BPF file system.
// It fails with [ErrInUse] while an agent runs.
func CheckUnused(bpffs string) (found bool, err error) {
	lock, err := lockPinDir(bpffs)
	if lock == nil || err != nil {
		return false, err
	}
	return true, lock.Close()
}

// CleanupLinks detaches every program that agents have attached by links pinned
// in a BPF file system, and returns the names of the links. It fails with
// [ErrInUse] while an agent runs.
func CleanupLinks(bpffs string) (removed []string, err error) {
	lock, err := lockPinDir(bpffs)
	if lock == nil || err != nil {
		return nil, err
	}
	defer lock.Close()
	dir := LinksDir(bpffs)
	names, err := PinnedLinks(dir)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range names {
		if err := DetachPinned(filepath.Join(dir, name)); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, name)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("remove directory of links: %w", err))
	}
	return removed, errors.Join(errs...)
}
