// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// What process 1 of a node is told by its environment.
const (
	nodeVariable = "SLUICE_CLUSTER_NODE"
	dirVariable  = "SLUICE_CLUSTER_DIR"
	binVariable  = "SLUICE_CLUSTER_BIN"
)

const containerdSocket = "/run/containerd/containerd.sock"

// runNode is process 1 of a node: it runs what systemd runs on another one. It
// returns only if something fails.
func runNode() error {
	name, dir, bin := os.Getenv(nodeVariable), os.Getenv(dirVariable), os.Getenv(binVariable)
	for _, variable := range []string{roleVariable, nodeVariable, dirVariable, binVariable} {
		os.Unsetenv(variable)
	}
	c := &Cluster{options: Options{Dir: dir, Bin: bin}}
	n := &Node{Name: name, cluster: c}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := n.mountRoot(); err != nil {
		return err
	}
	children := &children{exits: map[int]chan unix.WaitStatus{}}
	go children.reap()
	if err := n.startServices(children); err != nil {
		return err
	}
	select {}
}

// startServices starts containerd, imports images, and starts what needs it.
func (n *Node) startServices(c *children) error {
	config := func(file string) string { return "--config=" + n.diskPath("etc", file) }
	go c.supervise(n.logPath("containerd"), "containerd", config(containerdFile))
	for {
		if err := c.run("ctr", "--address="+containerdSocket, "version"); err == nil {
			break
		}
		time.Sleep(pollInterval)
	}
	if err := n.importImages(c); err != nil {
		return err
	}
	go c.supervise(n.logPath("kube-proxy"), "kube-proxy", config(proxyFile))
	go c.supervise(n.logPath("kubelet"), "kubelet", config(kubeletFile),
		"--kubeconfig="+n.cluster.kubeconfigPath(n.user()), "--hostname-override="+n.Name)
	return nil
}

func (n *Node) logPath(service string) string { return n.cluster.logPath(n.Name + "-" + service) }

// importImages imports the cluster's images that the node does not have on its disk.
func (n *Node) importImages(c *children) error {
	images, err := filepath.Glob(n.cluster.path(imagesDir, "*.tar"))
	if err != nil {
		return err
	}
	for _, image := range images {
		imported := n.diskPath("imported-" + filepath.Base(image))
		if _, err := os.Stat(imported); err == nil {
			continue
		}
		if err := c.run(importCommand(image)...); err != nil {
			return fmt.Errorf("import %s: %w", image, err)
		}
		if err := os.WriteFile(imported, nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// children are the processes of process 1, which has to wait for every process
// that it inherits, too: so it is what waits, instead of package exec.
type children struct {
	mu    sync.Mutex
	exits map[int]chan unix.WaitStatus
}

// reap waits for children, as long as there are any.
func (c *children) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.ECHILD) {
			time.Sleep(pollInterval)
			continue
		}
		c.mu.Lock()
		if exit := c.exits[pid]; exit != nil {
			exit <- status
			delete(c.exits, pid)
		}
		c.mu.Unlock()
	}
}

// start starts a process; its status comes when it ends.
func (c *children) start(cmd *exec.Cmd) (<-chan unix.WaitStatus, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	exit := make(chan unix.WaitStatus, 1)
	c.exits[cmd.Process.Pid] = exit
	return exit, cmd.Process.Release()
}

// run runs a command to its end. Its output is that of process 1.
func (c *children) run(args ...string) error {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	exit, err := c.start(cmd)
	if err != nil {
		return err
	}
	if status := <-exit; status != 0 {
		return fmt.Errorf("%s: wait status %#x", strings.Join(args, " "), status)
	}
	return nil
}

// supervise runs a service, and again when it ends.
func (c *children) supervise(logPath string, args ...string) {
	for ; ; time.Sleep(time.Second) {
		log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			fmt.Fprintln(os.Stderr, "node:", err)
			continue
		}
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdout, cmd.Stderr = log, log
		exit, err := c.start(cmd)
		log.Close()
		if err != nil {
			fmt.Fprintln(os.Stderr, "node:", err)
			continue
		}
		fmt.Fprintf(os.Stderr, "node: %s ended with wait status %#x\n", args[0], <-exit)
	}
}
