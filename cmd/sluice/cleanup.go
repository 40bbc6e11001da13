// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/cmd/agent"
	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/reconcilers/attach"
	"github.com/sluice-net/sluice/reconcilers/cni"
	"github.com/sluice-net/sluice/reconcilers/egressip"
	"github.com/sluice-net/sluice/reconcilers/ledger"
	"github.com/sluice-net/sluice/reconcilers/sysctl"
	sourcescni "github.com/sluice-net/sluice/sources/cni"
)

// cleanup removes what an agent left on the node. Its fields are flags of the agent.
type cleanup struct {
	stateDir string
	socket   string
	bpffs    string
	procfs   string

	cniPaths  cni.Paths
	cniRunDir string
}

// cleanupStep removes one kind of thing and returns what it removed. It is not
// an error that there is nothing.
type cleanupStep struct {
	what string
	run  func() (removed []string, err error)
}

// steps are all there is to remove, in order, but for the CNI plugin. What the agent adds to
// the node is added here too.
func (c *cleanup) steps() []cleanupStep {
	return []cleanupStep{
		{"restored kernel parameter", func() ([]string, error) { return sysctl.Restore(c.stateDir, c.procfs) }},
		{"removed egress address", func() ([]string, error) { return egressip.Cleanup(c.bpffs) }},
		{"removed pinned program", func() ([]string, error) { return bpf.CleanupPrograms(c.bpffs) }},
		{"removed overlay device", c.removeOverlay}, // it is never without its program
		{"detached program", func() ([]string, error) { return bpf.CleanupLinks(c.bpffs) }},
		{"removed pin", func() ([]string, error) { return bpf.Cleanup(c.bpffs) }},
		{"removed socket", c.removeSockets},
	}
}

func newCleanupCommand() *cobra.Command {
	c := &cleanup{}
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that the agent left on this node",
		Long: `Remove everything that the agent left on this node: the CNI plugin, programs at
devices, the overlay device, egress addresses of pools, pinned programs and maps, kernel parameters that it changed, its
socket and its state. Traffic is no longer redirected from then on. It is refused
while an agent runs, and may be repeated. If the CNI plugin cannot be removed, as another CNI
configuration names it, all else stays too: new pods would not start without.

The flags are those that the agent was run with.`,
		Example: `  sluice cleanup
  sluice cleanup --state-dir=/var/lib/sluice --bpffs=/sys/fs/bpf`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, _, err := agent.CompleteFlags(cmd.Flags(), os.Environ()); err != nil {
				return agent.UsageErrorf("%w", err)
			}
			return c.run(cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(
		&c.stateDir, "state-dir", agent.DefaultConfig.StateDir, "directory of the agent's state",
	)
	flags.StringVar(&c.socket, "socket", api.DefaultConfig.Socket, "UNIX socket of the agent")
	flags.StringVar(
		&c.bpffs, "bpffs", bpf.DefaultConfig.BPFFS, "BPF file system in which the maps are pinned",
	)
	flags.StringVar(
		&c.cniPaths.ConfDir, "cni-conf-dir", cni.DefaultConfig.CNIConfDir,
		"directory of the node's CNI configurations",
	)
	flags.StringVar(
		&c.cniPaths.BinDir, "cni-bin-dir", cni.DefaultConfig.CNIBinDir,
		"directory of the node's CNI plugins",
	)
	flags.StringVar(
		&c.cniRunDir, "cni-run-dir", sourcescni.DefaultConfig.CNIRunDir,
		"directory in which the CNI plugin told of pods",
	)
	flags.StringVar(&c.procfs, "procfs", "/proc", "where procfs is mounted with a writable sys")
	return cmd
}

// run does all steps, also after one failed, and tells what it did. But if the CNI
// plugin cannot be removed all else stays: new pods go through it, and it needs the pinned
// maps and programs. The state goes last, and stays if something could not be removed: it
// says what is left to restore.
func (c *cleanup) run(w io.Writer) error {
	lock, err := agent.AcquireLock(c.stateDir)
	if err != nil {
		return cleanupError(err)
	}
	defer lock.Release()
	count := 0
	var errs error
	do := func(step cleanupStep) {
		removed, err := step.run()
		slices.Sort(removed)
		for _, name := range removed {
			fmt.Fprintf(w, "%s %s\n", step.what, name)
		}
		count += len(removed)
		errs = errors.Join(errs, err)
	}
	do(cleanupStep{"removed CNI plugin", c.removeCNI})
	if errs == nil {
		for _, step := range c.steps() {
			do(step)
		}
	}
	if errs != nil {
		return cleanupError(errs)
	}
	files, err := c.removeState(lock)
	for _, name := range files {
		fmt.Fprintf(w, "removed state %s\n", name)
	}
	if err != nil {
		return cleanupError(err)
	}
	if count+len(files) == 0 {
		fmt.Fprintln(w, "nothing to clean up")
	}
	return nil
}

// cleanupError is the error of the command. One that root would not get says so.
func cleanupError(err error) error {
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		return fmt.Errorf("sluice cleanup needs root: %w", err)
	}
	return fmt.Errorf("clean up: %w", err)
}

// stateFiles are the names of the agent's files in its state directory.
var stateFiles = []string{"sysctls.json", "sysctls-*", "check", ledger.StateFile}

// removeState removes the agent's files, and the directory if there was nothing
// else in it.
func (c *cleanup) removeState(lock *agent.Lock) (removed []string, err error) {
	for _, pattern := range stateFiles {
		paths, err := filepath.Glob(filepath.Join(c.stateDir, pattern))
		if err != nil {
			return removed, err
		}
		for _, path := range paths {
			if err := os.Remove(path); err != nil {
				return removed, err
			}
			removed = append(removed, path)
		}
	}
	if err := lock.Remove(); err != nil {
		return removed, fmt.Errorf("remove lock: %w", err)
	}
	_ = os.Remove(c.stateDir) // stays while it is not empty
	return removed, nil
}

// removeCNI takes the plugin out of the node's CNI configuration, so that pods start
// without it, and removes it. Its records of pods go, unless it may still be called to delete one.
func (c *cleanup) removeCNI() ([]string, error) {
	if _, err := bpf.CheckUnused(c.bpffs); err != nil {
		return nil, err // an agent runs
	}
	return cni.Uninstall(c.cniPaths, c.socket, c.cniRunDir)
}

// removeOverlay removes the overlay device if an agent was here: the device of
// one that has its maps elsewhere is not this one's to remove.
func (c *cleanup) removeOverlay() ([]string, error) {
	if found, err := bpf.CheckUnused(c.bpffs); err != nil || !found {
		return nil, err
	}
	return attach.CleanupOverlay()
}

// removeSockets removes the sockets of an agent that did not stop cleanly.
func (c *cleanup) removeSockets() (removed []string, err error) {
	for _, path := range []string{c.socket, agent.ShellSocket(c.socket)} {
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().Type() != fs.ModeSocket {
			continue
		}
		if err == nil {
			err = os.Remove(path)
		}
		if err != nil {
			return removed, fmt.Errorf("remove socket: %w", err)
		}
		removed = append(removed, path)
	}
	if dir := filepath.Dir(c.socket); filepath.Base(dir) == "sluice" {
		_ = os.Remove(dir) // stays while it is not empty
	}
	return removed, nil
}
