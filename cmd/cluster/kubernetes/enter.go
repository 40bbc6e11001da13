// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Enter returns a command that runs in the namespaces of a cluster that another
// process runs, with kubectl in its PATH.
func Enter(ctx context.Context, options Options, args ...string) (*exec.Cmd, error) {
	pid, err := runningCluster(&options)
	if err != nil {
		return nil, err
	}
	dir, err := os.Getwd() // is the same there
	if err != nil {
		return nil, err
	}
	return options.nsenter(ctx, enterArgs(pid, dir, args...)), nil
}

// EnterNode returns a command that runs in the namespaces of a node.
func EnterNode(
	ctx context.Context, options Options, node string, args ...string,
) (*exec.Cmd, error) {
	cluster, err := runningCluster(&options)
	if err != nil {
		return nil, err
	}
	pid, err := os.ReadFile(filepath.Join(options.Dir, diskDir, node, pidFile))
	if err != nil {
		return nil, fmt.Errorf("find node: %w", err)
	}
	command := append([]string{"nsenter"}, enterArgs(string(pid), "/", args...)...)
	return options.nsenter(ctx, enterArgs(cluster, "/", command...)), nil
}

// runningCluster returns the number of process 1 of the cluster that runs.
func runningCluster(options *Options) (pid string, err error) {
	if err := options.setDefaults(); err != nil {
		return "", err
	}
	if lock, err := takeLock(); err == nil {
		return "", errors.Join(errors.New("no cluster runs"), lock.Close())
	}
	text, err := os.ReadFile(filepath.Join(options.Dir, pidFile))
	if err != nil {
		return "", fmt.Errorf("the cluster that runs is not that of %s: %w", options.Dir, err)
	}
	return string(text), nil
}

func (o *Options) nsenter(ctx context.Context, args []string) *exec.Cmd {
	c := &Cluster{options: *o}
	cmd := exec.CommandContext(ctx, "nsenter", args...)
	cmd.Env = append(os.Environ(), "PATH="+c.searchPath(), "KUBECONFIG="+c.Kubeconfig())
	return cmd
}

// enterArgs are the arguments of nsenter for a command in a process's
// namespaces, in a directory there.
func enterArgs(pid, dir string, args ...string) []string {
	return append([]string{
		"--target=" + pid, "--net", "--mount", "--pid", "--uts", "--ipc", "--wdns=" + dir, "--",
	}, args...)
}
