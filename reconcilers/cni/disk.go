// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// disk is what the installer does to files, one step at a time: the process may be
// killed after each, and the node's CNI configuration works.
type disk interface {
	read(path string) ([]byte, error)
	write(path string, data []byte, mode fs.FileMode) error // in place, and to the disk
	rename(from, to string) error
	remove(path string) error
}

type realDisk struct{}

func (realDisk) read(path string) ([]byte, error) { return os.ReadFile(path) }

func (realDisk) write(path string, data []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}

// rename has the new name on the disk before it returns: the plugin's binary before
// the configuration that names it.
func (realDisk) rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (realDisk) remove(path string) error { return os.Remove(path) }

// temporary is the name under which a file is written: no runtime looks at one that
// ends like this.
func temporary(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
}

// replace makes a file be as given, in one step for who reads it, and reports whether
// it was not.
func replace(d disk, path string, data []byte, mode fs.FileMode) (changed bool, err error) {
	is, err := d.read(path)
	if err == nil && bytes.Equal(is, data) {
		if info, err := os.Stat(path); err == nil && info.Mode().Perm() == mode {
			return false, nil
		}
	}
	if err := d.write(temporary(path), data, mode); err != nil {
		return false, fmt.Errorf("write %s: %w", path, err)
	}
	if err := d.rename(temporary(path), path); err != nil {
		return false, fmt.Errorf("write %s: %w", path, err)
	}
	return true, nil
}

// remove removes a file and what is left of writing it, and reports whether there was
// such a file. A read-only file system refuses to remove also a file that is not there.
func remove(d disk, path string) (removed bool, err error) {
	for _, p := range []string{path, temporary(path)} {
		if !exists(p) {
			continue
		}
		if err := d.remove(p); err != nil {
			return removed, fmt.Errorf("remove %s: %w", p, err)
		}
		removed = removed || p == path
	}
	return removed, nil
}

// exists reports whether there may be a file.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// same reports whether a file is the one that it was, going by all but its content.
func same(a, b fs.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) &&
		a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && a.Mode() == b.Mode()
}
