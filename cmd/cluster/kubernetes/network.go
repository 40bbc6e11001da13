// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"

	"github.com/vishvananda/netns"

	"github.com/sluice-net/sluice/cmd/cluster/traffic"
)

// Addresses. All of them exist in the cluster's namespaces only.
const (
	routerIP      = "192.0.2.1" // of the bridge; the API server listens there
	nodesNetwork  = "192.0.2."  // worker-N is .10+N
	outsideRouter = "203.0.113.1"
	podsCIDR      = "10.244.0.0/16" // worker-N has 10.244.N.0/24
	servicesCIDR  = "10.96.0.0/16"
	kubernetesIP  = "10.96.0.1" // of the service of the API server
	clusterBridge = "br0"
	outsideNetns  = "outside"
	nodeDevice    = "eth0"
	apiServerPort = "6443"
)

// OutsideIP is the address of the server that is not in the cluster.
const OutsideIP = "203.0.113.9"

// connectOutside makes the bridge of the nodes, and a namespace with the
// server behind this one, which is the router.
func (c *Cluster) connectOutside(context.Context) error {
	err := runAll(
		"sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0",
		"ip link add "+clusterBridge+" type bridge",
		"ip addr add "+routerIP+"/24 dev "+clusterBridge,
		"ip link set "+clusterBridge+" up",
		"ip netns add "+outsideNetns,
		"ip -n "+outsideNetns+" link set lo up",
		"ip -n "+outsideNetns+" link add "+nodeDevice+" type veth peer name outside netns 1",
		"ip -n "+outsideNetns+" addr add "+OutsideIP+"/24 dev "+nodeDevice,
		"ip -n "+outsideNetns+" link set "+nodeDevice+" up",
		"ip addr add "+outsideRouter+"/24 dev outside",
		"ip link set outside up",
		"ip -n "+outsideNetns+" route add default via "+outsideRouter,
	)
	if err != nil {
		return err
	}
	return inNetns(outsideNetns, func() (err error) {
		c.Outside, err = traffic.Listen()
		return err
	})
}

// inNetns runs f in a named network namespace, on a thread of its own. What f
// listens on stays in the namespace.
func inNetns(name string, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		namespace, err := netns.GetFromName(name)
		if err == nil {
			defer namespace.Close()
			err = netns.Set(namespace)
		}
		if err != nil {
			done <- fmt.Errorf("enter network namespace %s: %w", name, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// connect makes the node's network namespace, with a device on the bridge.
func (n *Node) connect() error {
	commands := []string{
		"ip netns add " + n.Name,
		"ip -n " + n.Name + " link set lo up",
		"ip -n " + n.Name + " link add " + nodeDevice + " type veth peer name " + n.Name + " netns 1",
		"ip link set " + n.Name + " master " + clusterBridge + " up",
		"ip -n " + n.Name + " addr add " + n.IP + "/24 dev " + nodeDevice,
		"ip -n " + n.Name + " link set " + nodeDevice + " up",
		"ip -n " + n.Name + " route add default via " + routerIP,
		"ip netns exec " + n.Name + " sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1",
		// Pods leave the cluster with their node's address, as with kindnet and
		// ip-masq-agent. The plugin's own ipMasq would translate also what goes
		// to pods of other nodes, as it knows the network of one node only.
		"ip netns exec " + n.Name + " iptables -w -t nat -A POSTROUTING -s " + podsCIDR + " ! -d " + podsCIDR + " -j MASQUERADE",
		// The router knows the way to pods, so that the server would also answer
		// a pod that leaves with its own address, and the tests would see it.
		"ip route replace " + n.PodCIDR + " via " + n.IP,
	}
	// The way to pods of other nodes: no overlay, as with flannel's host-gw.
	for _, peer := range n.cluster.Nodes {
		if peer != n {
			commands = append(commands, "ip -n "+n.Name+" route add "+peer.PodCIDR+" via "+peer.IP)
		}
	}
	return runAll(commands...)
}

// disconnect removes the node's network namespace, and waits until its device
// is gone from the bridge.
func (n *Node) disconnect(ctx context.Context) error {
	if err := runAll("ip netns del " + n.Name); err != nil {
		return err
	}
	return Await(ctx, "the network of "+n.Name+" is gone", func() error {
		if text, err := exec.Command("ip", "-o", "link", "show").Output(); err != nil || strings.Contains(string(text), " "+n.Name+"@") {
			return fmt.Errorf("its device is still there: %w", err)
		}
		return nil
	})
}

// SetLink sets the node's link to the others up or down, as if its cable was pulled.
func (n *Node) SetLink(up bool) error {
	state := "down"
	if up {
		state = "up"
	}
	return runAll("ip link set " + n.Name + " " + state)
}

// AddAddress gives the node another address, as of an egress gateway.
func (n *Node) AddAddress(ip string) error {
	return runAll("ip -n " + n.Name + " addr replace " + ip + "/32 dev " + nodeDevice)
}
