// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// pollInterval is between two looks at a condition that something waits for.
const pollInterval = 100 * time.Millisecond

// runAll runs commands one after the other; their words are separated by blanks.
func runAll(commands ...string) error {
	for _, command := range commands {
		words := strings.Fields(command)
		if _, err := output(exec.Command(words[0], words[1:]...)); err != nil {
			return err
		}
	}
	return nil
}

// output returns the standard output of a command. If it fails, the error has
// its standard error.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		command := strings.Join(cmd.Args, " ")
		return stdout.String(), fmt.Errorf("%s: %w: %s", command, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// Await polls until a condition holds. The error has why it last did not.
func Await(ctx context.Context, what string, condition func() error) error {
	for {
		err := condition()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, errors.Join(ctx.Err(), err))
		case <-time.After(pollInterval):
		}
	}
}

// Kubectl returns kubectl as administrator.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) *exec.Cmd {
	args = append([]string{"--kubeconfig=" + c.Kubeconfig()}, args...)
	return exec.CommandContext(ctx, c.path(toolsDir, "kubectl"), args...)
}

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.kubeconfigPath(admin) }

// RunKubectl runs kubectl and returns its output.
func (c *Cluster) RunKubectl(ctx context.Context, args ...string) (string, error) {
	return output(c.Kubectl(ctx, args...))
}

// Apply applies YAML manifests.
func (c *Cluster) Apply(ctx context.Context, manifests string) error {
	cmd := c.Kubectl(ctx, "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifests)
	_, err := output(cmd)
	return err
}
