// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// clusterCgroup is the parent of the nodes' cgroups, in every hierarchy.
const clusterCgroup = "sluice-cluster"

const cgroupRoot = "/sys/fs/cgroup"

// removeTimeout is how long the kernel may take to end the last processes of a cgroup.
const removeTimeout = 30 * time.Second

// cgroupHierarchies returns the mount points of cgroups: one for each
// controller with version 1, a single one with version 2.
func cgroupHierarchies() ([]string, error) {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return []string{cgroupRoot}, nil
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, err
	}
	var hierarchies []string
	for _, entry := range entries {
		if entry.IsDir() { // the others are links, as cpu to cpu,cpuacct
			hierarchies = append(hierarchies, filepath.Join(cgroupRoot, entry.Name()))
		}
	}
	return hierarchies, nil
}

// makeCgroups makes the cgroup of a node in every hierarchy.
func makeCgroups(node string) error {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	for _, hierarchy := range hierarchies {
		parent := filepath.Join(hierarchy, clusterCgroup)
		for _, path := range []string{parent, filepath.Join(parent, node)} {
			if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
			if err := prepareCpuset(hierarchy, path); err != nil {
				return fmt.Errorf("prepare cgroup %s: %w", path, err)
			}
		}
		for _, path := range []string{hierarchy, parent} {
			if err := delegateControllers(path); err != nil {
				return fmt.Errorf("delegate controllers of cgroup %s: %w", path, err)
			}
		}
	}
	return nil
}

// prepareCpuset copies the parent's processors and memory: with version 1 a
// new cpuset has none, and no process can join it.
func prepareCpuset(hierarchy, path string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(hierarchy, file))
		if errors.Is(err, os.ErrNotExist) {
			return nil // another controller, or version 2
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(path, file), value, 0); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(path, "cgroup.clone_children"), []byte("1"), 0)
}

// delegateControllers has the children of a cgroup of version 2 control what it does.
func delegateControllers(path string) error {
	controllers, err := os.ReadFile(filepath.Join(path, "cgroup.controllers"))
	if errors.Is(err, os.ErrNotExist) {
		return nil // version 1
	}
	if err != nil {
		return err
	}
	for _, controller := range strings.Fields(string(controllers)) {
		err := os.WriteFile(filepath.Join(path, "cgroup.subtree_control"), []byte("+"+controller), 0)
		if err != nil {
			return err
		}
	}
	return nil
}

// removeCgroups removes a cgroup with all below it, in every hierarchy.
func removeCgroups(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	for _, hierarchy := range hierarchies {
		path := filepath.Join(hierarchy, name)
		if err := Await(ctx, path+" is removed", func() error { return removeCgroup(path) }); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroup removes what it can, and returns the first error.
func removeCgroup(root string) error {
	var paths []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			paths = append(paths, path)
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
	for _, path := range slices.Backward(paths) {
		rmdir := unix.Rmdir(path)
		if err == nil && rmdir != nil && !errors.Is(rmdir, unix.ENOENT) {
			err = fmt.Errorf("remove %s: %w", path, rmdir)
		}
	}
	return err
}
