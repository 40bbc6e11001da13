// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Enter returns a command that runs in the namespaces of a cluster that another
// process runs, with kubectl and etcd in its PATH.
func Enter(ctx context.Context, options Options, args ...string) (*exec.Cmd, error) {
	if err := options.setDefaults(); err != nil {
		return nil, err
	}
	pid, err := readPID(filepath.Join(options.Dir, pidFile))
	if err != nil {
		return nil, err
	}
	return enter(ctx, options, pid, args...), nil
}

// EnterNode returns a command that runs in the namespaces of a node.
func EnterNode(ctx context.Context, options Options, node string, args ...string) (*exec.Cmd, error) {
	if err := options.setDefaults(); err != nil {
		return nil, err
	}
	cluster, err := readPID(filepath.Join(options.Dir, pidFile))
	if err != nil {
		return nil, err
	}
	pid, err := readPID(filepath.Join(options.Dir, diskDir, node, pidFile))
	if err != nil {
		return nil, err
	}
	inner := enter(ctx, options, pid, args...)
	return enter(ctx, options, cluster, inner.Args...), nil
}

func enter(ctx context.Context, options Options, pid string, args ...string) *exec.Cmd {
	c := &Cluster{options: options}
	cmd := exec.CommandContext(ctx, "nsenter",
		append([]string{"--target=" + pid, "--net", "--mount", "--pid", "--uts", "--ipc", "--wdns=/", "--"}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+c.searchPath(), "KUBECONFIG="+c.Kubeconfig())
	return cmd
}

// readPID reads the number of a process from a file. The file is there as long
// as the cluster runs.
func readPID(file string) (string, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("no cluster runs, or not that node: %w", err)
	}
	return strings.TrimSpace(string(text)), err
}
