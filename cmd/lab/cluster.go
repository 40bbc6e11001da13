// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// ErrNotRoot says that the process may not make namespaces.
var ErrNotRoot = errors.New("needs root: it makes network namespaces")

// Options say what cluster to build. The zero value is a good one.
type Options struct {
	Nodes           int  // 3 if 0
	SingleInterface bool // the nodes are connected to the world by eth0 too: there is no eth1
	BridgeCNI       bool // pods are ports of a bridge, instead of routed one by one
	IPv6Underlay    bool // the nodes have no IPv4 address inside the cluster
	MTU             int  // of all devices; 1500 if 0

	// MasqueradeNodes has nodes give pods' packets their own address also towards other nodes,
	// as kindnet, flannel and others do.
	MasqueradeNodes bool

	// vpn connects the nodes over their network, for tests; nil if nothing does.
	vpn vpn

	// Dir is where manifests, logs and sockets are; a temporary one if empty,
	// which Close removes. Sockets limit its length to some 70 characters.
	Dir string

	// Agent is the command line of an agent, to which flags are added; if empty,
	// the command "agent" of this very program.
	Agent      []string
	AgentFlags []string  // of all agents, after those of the lab
	AgentLog   io.Writer // what agents log is written here too, each line after the node's name
	NoAgents   bool      // do not start any yet

	NoCapture bool // do not look at each packet that the world gets; Ping needs it
}

// vpn is a network between nodes over another one.
type vpn interface {
	// add gives a node a device, and makes its addresses those of the node.
	add(*Node) (device string, err error)
	// connect has a node reach the others, and their pods.
	connect(*Node, []*Node) error
	remove(*Node)
}

// Cluster is a cluster of network namespaces.
type Cluster struct {
	Nodes []*Node
	World *World

	options Options
	dir     string
	fabric  *Namespace // has the bridges

	mu      sync.Mutex // of what follows
	objects map[objectID][]byte
	pods    map[*Pod]bool
	closed  bool
	follow  follower // nil if nothing does
}

// follower is told of each change of an object, for tests.
type follower interface {
	put(Object)
	remove(objectID)
}

const (
	defaultNodes = 3
	defaultMTU   = 1500

	switchBridge  = "switch"
	outsideBridge = "outside"
)

// New builds a cluster, and starts an agent on each node. It does not wait for
// them. Close the cluster; after an error there is nothing to close.
func New(ctx context.Context, options Options) (*Cluster, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	if options.Nodes == 0 {
		options.Nodes = defaultNodes
	}
	if options.MTU == 0 {
		options.MTU = defaultMTU
	}
	if options.AgentLog != nil {
		options.AgentLog = &lockedWriter{w: options.AgentLog}
	}
	c := &Cluster{options: options, objects: map[objectID][]byte{}, pods: map[*Pod]bool{}}
	if err := c.build(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("build cluster: %w", err)
	}
	return c, nil
}

func (c *Cluster) build(ctx context.Context) error {
	if err := c.makeDirs(); err != nil {
		return err
	}
	if err := c.buildFabric(); err != nil {
		return err
	}
	if err := c.buildWorld(); err != nil {
		return err
	}
	for number := 1; number <= c.options.Nodes; number++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := c.newNode(number)
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, n)
	}
	for _, n := range c.Nodes {
		if c.options.vpn != nil {
			if err := c.options.vpn.connect(n, c.Nodes); err != nil {
				return err
			}
		}
		if err := n.routeToPeers(c.Nodes); err != nil {
			return err
		}
		if err := c.Apply(n.Object()); err != nil {
			return err
		}
	}
	if c.options.NoAgents {
		return nil
	}
	return c.StartAgents()
}

func (c *Cluster) makeDirs() (err error) {
	if c.dir = c.options.Dir; c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "sluice-lab-"); err != nil {
			return err
		}
	}
	return os.MkdirAll(c.ManifestDir(), 0o755)
}

// buildFabric makes the bridges that stand for the switches.
func (c *Cluster) buildFabric() (err error) {
	if c.fabric, err = newNamespace("fabric"); err != nil {
		return err
	}
	if err := c.fabric.Sysctl("net.ipv6.conf.default.disable_ipv6=1"); err != nil {
		return err
	}
	for _, bridge := range []string{switchBridge, outsideBridge} {
		if err := c.fabric.addBridge(bridge, c.options.MTU); err != nil {
			return err
		}
	}
	return nil
}

// connect gives a namespace a device that is connected to a bridge of the fabric.
func (c *Cluster) connect(n *Namespace, device, bridge string) error {
	port := n.Name + "-" + device
	if err := n.addVeth(device, c.fabric, port, c.options.MTU); err != nil {
		return err
	}
	return c.fabric.plug(port, bridge)
}

// Dir has manifests, logs and sockets.
func (c *Cluster) Dir() string { return c.dir }

// ManifestDir has the objects of the cluster, which all agents read.
func (c *Cluster) ManifestDir() string { return filepath.Join(c.dir, "manifests") }

// Close ends the agents and removes everything, also the directory if it was a
// temporary one.
func (c *Cluster) Close() {
	c.CloseKeepingDir()
	if c.options.Dir == "" && c.dir != "" {
		_ = os.RemoveAll(c.dir)
	}
}

// CloseKeepingDir is Close, but leaves the directory with the logs.
func (c *Cluster) CloseKeepingDir() {
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	c.mu.Unlock()
	if closed {
		return
	}
	c.stopAgents()
	for _, n := range c.Nodes {
		n.close()
	}
	for p := range c.pods {
		p.Close()
	}
	if c.World != nil {
		c.World.close()
	}
	if c.fabric != nil {
		c.fabric.Close()
	}
}

// stopAgents ends all agents at the same time.
func (c *Cluster) stopAgents() {
	var stopped sync.WaitGroup
	for _, n := range c.Nodes {
		stopped.Go(n.Agent.end)
	}
	stopped.Wait()
}

// StartAgents starts the agents that do not run.
func (c *Cluster) StartAgents() error {
	for _, n := range c.Nodes {
		if n.Agent.Running() {
			continue
		}
		if err := n.Agent.Start(); err != nil {
			return err
		}
	}
	return nil
}

// AwaitAgents waits until all agents are ready.
func (c *Cluster) AwaitAgents(ctx context.Context) error {
	for _, n := range c.Nodes {
		if err := n.Agent.AwaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}
