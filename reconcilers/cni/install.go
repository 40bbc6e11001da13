// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/cniconf"
	"github.com/sluice-net/sluice/tables/cnifile"
)

// Paths are where the plugin is installed.
type Paths struct {
	ConfDir string // of the runtime's CNI configurations
	BinDir  string // of its CNI plugins
}

func (p Paths) file() string { return filepath.Join(p.ConfDir, FileName) }

// Binary is the path of the plugin.
func (p Paths) Binary() string { return filepath.Join(p.BinDir, cniconf.Type) }

// installer keeps the plugin in the node's CNI configuration.
type installer struct {
	Paths
	disk   disk
	source string // of the binary
	plugin cniconf.Config

	// copied are the source and the copy of it when they were the same: as long as both
	// are these files, they are not read.
	copied [2]fs.FileInfo
}

// install copies the binary, and then writes the configuration that names it: the
// first one by name of those that others have written, with the plugin at its end and
// those that others have added. It says what came of it. What it has written before stays
// while that cannot be made: the CNI may be about to write its file.
func (i *installer) install() *tables.CNIConfig {
	row := &tables.CNIConfig{File: i.file(), State: tables.CNIBroken}
	if err := i.copyBinary(); err != nil {
		row.Error = err.Error()
		return row
	}
	files, err := configurations(i.ConfDir)
	if err != nil {
		row.Error = err.Error()
		return row
	}
	first := ""
	for _, file := range files {
		if isOther(file) {
			first = file
			break
		}
	}
	if first == "" {
		row.State = tables.CNIWaiting
		if _, err := remove(i.disk, i.file()); err != nil {
			row.State, row.Error = tables.CNIBroken, err.Error()
		}
		return row
	}
	row.MadeFrom = first
	if err := i.write(row, first); err != nil {
		row.Error = err.Error()
		return row
	}
	if first < i.file() {
		row.Error = fmt.Sprintf("runtimes take %s, which sorts before %s: rename it, or pods start without the plugin", first, i.file())
		return row
	}
	row.State = tables.CNIInstalled
	return row
}

// write writes the configuration that is made from a file.
func (i *installer) write(row *tables.CNIConfig, from string) error {
	data, err := i.disk.read(from)
	if err != nil {
		return fmt.Errorf("read %s: %w", from, err)
	}
	former, err := i.disk.read(i.file())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read %s: %w", i.file(), err)
	}
	made, err := compose(from, data, former, i.plugin)
	if err != nil {
		return fmt.Errorf("use %s: %w", from, err)
	}
	row.Network, row.CNIVersion, row.Others = made.network, made.version, made.others
	_, err = replace(i.disk, i.file(), made.data, 0o600)
	return err
}

func (i *installer) copyBinary() error {
	is := i.binaries()
	if same(is[0], i.copied[0]) && same(is[1], i.copied[1]) {
		return nil
	}
	data, err := i.disk.read(i.source)
	if err != nil {
		return fmt.Errorf("read the CNI plugin, which is beside the agent: %w", err)
	}
	if _, err := replace(i.disk, i.Binary(), data, 0o755); err != nil {
		return err
	}
	i.copied = i.binaries()
	return nil
}

// binaries are the source and the copy of it, nil where there is none.
func (i *installer) binaries() (files [2]fs.FileInfo) {
	for n, path := range []string{i.source, i.Binary()} {
		if info, err := os.Lstat(path); err == nil {
			files[n] = info
		}
	}
	return files
}

// Uninstall takes the plugin out of the node's CNI configuration, removes its binary and the
// files of pods' interfaces, and returns what it removed. It fails and removes nothing while
// another agent that runs has the plugin, or while another configuration names the plugin:
// pods could not start with that configuration.
//
// The binary and the files stay while a runtime may call the plugin for pods that are left:
// CRI-O keeps the configuration with each pod. Other runtimes do not call it any more, so
// the files would never go.
func Uninstall(p Paths, socket, runDir string) (removed []string, err error) {
	return uninstall(realDisk{}, p, socket, runDir)
}

func uninstall(d disk, p Paths, socket, runDir string) (removed []string, err error) {
	// The socket may have changed since the file was written: no agent has the former one.
	// A file that cannot be read has no owner.
	if owner, err := socketOf(p.file()); err == nil && owner != socket && listens(owner) {
		return nil, fmt.Errorf("leave %s alone: it is of the agent that listens on %s", p.file(), owner)
	}
	other, err := otherWithPlugin(d, p.ConfDir)
	if err != nil {
		return nil, err
	}
	if other != "" {
		return nil, fmt.Errorf("%s has %s in it too: no pod would start with that if the plugin was "+
			"gone. Have it made from the CNI's own file, or remove it", other, cniconf.Type)
	}
	kept, err := mayBeCalled(runDir)
	if err != nil {
		return nil, err
	}
	steps := []string{p.file()}
	if !kept {
		steps = append(steps, p.Binary())
	}
	for _, path := range steps {
		was, err := remove(d, path)
		if err != nil {
			return removed, err
		}
		if was {
			removed = append(removed, path)
		}
	}
	if kept {
		return removed, nil
	}
	if err := cnifile.Keep(runDir, func(string, string) bool { return false }); err != nil {
		return removed, err
	}
	_ = os.Remove(runDir) // stays while it is not empty
	return removed, nil
}

// otherWithPlugin returns the first configuration of others that has the plugin in it, as
// Multus makes one of the first file; empty if there is none. Which one the runtime takes
// does not matter: with that of Sluice gone it may be any of them.
func otherWithPlugin(d disk, dir string) (string, error) {
	files, err := configurations(dir)
	if err != nil {
		return "", err
	}
	for _, file := range files {
		if !isOther(file) {
			continue
		}
		data, err := d.read(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("read %s: %w", file, err)
		}
		if hasPlugin(data) {
			return file, nil
		}
	}
	return "", nil
}

// listens reports whether a process listens on a socket, also if it is too busy to answer.
func listens(socket string) bool {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err == nil {
		conn.Close()
	}
	return err == nil || errors.Is(err, unix.EAGAIN) || errors.Is(err, os.ErrDeadlineExceeded)
}

// mayBeCalled reports whether pods are left that a runtime other than containerd made.
func mayBeCalled(runDir string) (bool, error) {
	runtimes, err := cnifile.Runtimes(runDir)
	delete(runtimes, "containerd")
	delete(runtimes, "containerd-shim")
	return len(runtimes) > 0, err
}
