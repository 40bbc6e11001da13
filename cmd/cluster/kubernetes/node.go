// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/cmd/e2e/process"
)

// Node is a worker.
type Node struct {
	Name    string // worker-1
	IP      string
	PodCIDR string

	cluster *Cluster
	init    *process.Process // process 1 of the node; nil while it is off
	boots   int
}

func newNode(c *Cluster, number int) *Node {
	return &Node{
		Name:    "worker-" + strconv.Itoa(number),
		IP:      nodesNetwork + strconv.Itoa(10+number),
		PodCIDR: fmt.Sprintf("10.244.%d.0/24", number),
		cluster: c,
	}
}

func (n *Node) user() string { return "system:node:" + n.Name }

// diskPath is a path of what the node has on a disk, as the machine sees it.
func (n *Node) diskPath(elements ...string) string {
	return n.cluster.path(append([]string{diskDir, n.Name}, elements...)...)
}

// Boot switches the node on, and waits until Kubernetes takes it for ready. A
// node that was switched off has its disk still, but nothing else.
func (n *Node) Boot(ctx context.Context) error {
	if err := n.boot(ctx); err != nil {
		return fmt.Errorf("boot %s: %w", n.Name, err)
	}
	return nil
}

func (n *Node) boot(ctx context.Context) error {
	if n.init != nil {
		return errors.New("it runs")
	}
	if err := n.connect(); err != nil {
		return err
	}
	if err := makeCgroups(n.Name); err != nil {
		return err
	}
	if n.boots == 0 {
		if err := n.installFiles(); err != nil {
			return err
		}
	}
	n.boots++
	heartbeat, err := n.info(ctx, lastHeartbeat)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command("nsenter", "--net=/run/netns/"+n.Name, self)
	cmd.Env = append(os.Environ(), roleVariable+"="+roleNode, nodeVariable+"="+n.Name,
		dirVariable+"="+n.cluster.options.Dir, binVariable+"="+n.cluster.options.Bin)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	if n.init, err = process.Start(n.Name, n.cluster.logPath(n.Name), cmd); err != nil {
		return err
	}
	pid := []byte(strconv.Itoa(n.init.PID()))
	if err := os.WriteFile(n.diskPath(pidFile), pid, 0o644); err != nil {
		return err
	}
	return Await(ctx, n.Name+" is ready", func() error {
		select {
		case <-n.init.Exited():
			return fmt.Errorf("it ended; its last lines:\n%s", n.init.LogTail(20))
		default:
		}
		return n.ready(ctx, heartbeat)
	})
}

// Parts of a Node object.
const (
	readyStatus   = "{.status.conditions[?(@.type=='Ready')].status}"
	lastHeartbeat = "{.status.conditions[?(@.type=='Ready')].lastHeartbeatTime}"
)

// ready fails unless the node's kubelet has said that it is ready since its
// former heartbeat.
func (n *Node) ready(ctx context.Context, former string) error {
	status, err := n.info(ctx, readyStatus)
	if err != nil {
		return err
	}
	heartbeat, err := n.info(ctx, lastHeartbeat)
	if err != nil {
		return err
	}
	if status != "True" || heartbeat == former {
		return fmt.Errorf("its condition Ready is %q since %s", status, heartbeat)
	}
	return nil
}

func (n *Node) info(ctx context.Context, part string) (string, error) {
	return n.cluster.RunKubectl(ctx, "get", "node", n.Name, "--output=jsonpath="+part)
}

// PowerOff ends everything on the node at once, as a power cut does: nothing is
// said to anyone, and its network is gone with its cgroups.
func (n *Node) PowerOff(ctx context.Context) error {
	if n.init == nil {
		return fmt.Errorf("power off %s: it is off", n.Name)
	}
	// First of all: programs are gone before addresses, and these would reset connections.
	if err := n.SetLink(false); err != nil {
		return fmt.Errorf("power off %s: %w", n.Name, err)
	}
	n.init.Kill() // the kernel ends all processes of the PID namespace with its process 1
	n.init = nil
	if err := n.disconnect(ctx); err != nil {
		return fmt.Errorf("power off %s: %w", n.Name, err)
	}
	return removeCgroups(filepath.Join(clusterCgroup, n.Name))
}

// Command returns a command that runs in the node's namespaces, as root there.
func (n *Node) Command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", enterArgs(strconv.Itoa(n.init.PID()), "/", args...)...)
}

// Run runs a command in the node's namespaces and returns its output.
func (n *Node) Run(ctx context.Context, args ...string) (string, error) {
	return output(n.Command(ctx, args...))
}

// InNetwork runs f in the node's network namespace, on a thread of its own.
func (n *Node) InNetwork(f func() error) error { return inNetns(n.Name, f) }

// PID is the number of the node's process 1 in the cluster.
func (n *Node) PID() int { return n.init.PID() }

// Path is where the cluster's namespaces have a file of the node.
func (n *Node) Path(path string) string {
	return filepath.Join("/proc", strconv.Itoa(n.init.PID()), "root", path)
}
