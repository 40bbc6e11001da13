// SPDX-License-Identifier: Apache-2.0

// Package kubernetes runs a real Kubernetes cluster on one machine, without a
// registry and without anything that the machine would notice.
//
//	machine ── RunIsolated ── namespaces of the cluster: network, mount, PID, UTS, IPC
//	                           │  etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//	                           │  bridge br0, 192.0.2.1, which is also the router
//	                           ├── worker-1: its own namespaces; containerd, kubelet, kube-proxy
//	                           ├── worker-2
//	                           ├── worker-3
//	                           └── outside: network namespace of the server 203.0.113.9
//
// The program that starts a cluster is process 1 of the cluster's PID namespace.
// When it ends, for whatever reason, the kernel ends every process of the
// cluster, and with them go all mounts and network namespaces. What is left are
// cgroups and the files in [Options.Dir]: RunIsolated removes them, before and after.
//
// A node has a root file system of its own, an overlay over the machine's, so
// that a pod with a hostPath volume changes the node and not the machine.
package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sluice-net/sluice/cmd/cluster/traffic"
	"github.com/sluice-net/sluice/cmd/e2e/process"
)

// Modes of kube-proxy, for [Options.Proxy].
const (
	IPTables = "iptables"
	NFTables = "nftables"
)

// Main plugins of the CNI configuration, for [Options.CNI].
const (
	Bridge = "bridge"
	PTP    = "ptp"
)

// Options are what clusters differ in. The zero value of a field selects its default.
type Options struct {
	Bin   string // directory of the binaries that make cluster-binaries builds
	Dir   string // state of the running cluster; Bin/cluster
	Nodes int    // number of workers; 3
	Proxy string // mode of kube-proxy; IPTables
	CNI   string // main CNI plugin; Bridge
	MTU   int    // of pods; 1500
	// Images are what the nodes have, besides those of every cluster.
	Images []Image
}

func (o *Options) setDefaults() (err error) {
	if o.Bin, err = filepath.Abs(o.Bin); err != nil {
		return err
	}
	if o.Dir == "" {
		o.Dir = filepath.Join(o.Bin, "cluster")
	}
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	if o.Proxy == "" {
		o.Proxy = IPTables
	}
	if o.CNI == "" {
		o.CNI = Bridge
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	return nil
}

// Cluster is a running cluster.
type Cluster struct {
	Nodes   []*Node
	Outside *traffic.Server

	options   Options
	processes []*process.Process // of the control plane
}

// readyTimeout is how long the cluster may take until all nodes are ready, on a busy machine.
const readyTimeout = 5 * time.Minute

// Start brings up a cluster whose nodes are all ready. The program must run
// isolated: see [RunIsolated].
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if !isolated() {
		return nil, errors.New("start cluster: not in namespaces of its own")
	}
	if err := options.setDefaults(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	c := &Cluster{options: options}
	for number := 1; number <= options.Nodes; number++ {
		c.Nodes = append(c.Nodes, newNode(c, number))
	}
	for _, step := range []func(context.Context) error{
		c.makeDirectories, c.writeImages, c.writeCredentials,
		c.connectOutside, c.startControlPlane, c.bootNodes,
	} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("start cluster: %w", err)
		}
	}
	return c, nil
}

// bootNodes boots all nodes at once and waits until they are ready.
func (c *Cluster) bootNodes(ctx context.Context) error {
	var boots sync.WaitGroup
	errs := make([]error, len(c.Nodes))
	for i, node := range c.Nodes {
		boots.Go(func() { errs[i] = node.Boot(ctx) })
	}
	boots.Wait()
	return errors.Join(errs...)
}

// Node returns the node of that name, such as worker-1.
func (c *Cluster) Node(name string) *Node {
	for _, node := range c.Nodes {
		if node.Name == name {
			return node
		}
	}
	panic("no node " + name)
}

// Directories of the cluster, below Options.Dir.
const (
	pkiDir   = "pki"   // keys, certificates and tokens
	logDir   = "log"   // of every process; stays when the cluster is gone
	toolsDir = "tools" // links to the binary of Kubernetes, by the names of its components
	diskDir  = "disk"  // NODE: what the node has on a disk
	rootsDir = "roots" // NODE/upper, NODE/work: changes of the root file system; in memory
)

// path is a path below the cluster's directory.
func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.options.Dir}, elements...)...)
}

func (c *Cluster) logPath(name string) string { return c.path(logDir, name+".log") }

// components are what the one binary of Kubernetes is called by.
var components = []string{
	"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler",
	"kube-proxy", "kubelet", "kubectl",
}

func (c *Cluster) makeDirectories(context.Context) error {
	for _, dir := range []string{pkiDir, logDir, toolsDir, diskDir, rootsDir} {
		if err := os.MkdirAll(c.path(dir), 0o755); err != nil {
			return err
		}
	}
	for _, name := range components {
		if err := os.Symlink(c.binary("kubernetes"), c.path(toolsDir, name)); err != nil {
			return err
		}
	}
	// An overlay cannot have its changes below what it changes, which is all the machine's disk.
	if err := mount("tmpfs", c.path(rootsDir), "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	// The components, containerd and its shims are looked up by name.
	return os.Setenv("PATH", c.searchPath())
}

func (c *Cluster) searchPath() string {
	return c.path(toolsDir) + ":" + c.binary("containerd/usr/bin") +
		":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}
