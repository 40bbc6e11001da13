// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

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
	const ip = "ip -n " + outsideNetns + " "
	err := runAll(
		"sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0",
		"ip link add "+clusterBridge+" type bridge",
		"ip addr add "+routerIP+"/24 dev "+clusterBridge,
		"ip link set "+clusterBridge+" up",
		"ip netns add "+outsideNetns,
		ip+"link set lo up",
		ip+"link add "+nodeDevice+" type veth peer name outside netns 1",
		ip+"addr add "+OutsideIP+"/24 dev "+nodeDevice,
		ip+"link set "+nodeDevice+" up",
		"ip addr add "+outsideRouter+"/24 dev outside",
		"ip link set outside up",
		ip+"route add default via "+outsideRouter,
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
	return onThread(func() error {
		namespace, err := netns.GetFromName(name)
		if err == nil {
			defer namespace.Close()
			err = netns.Set(namespace)
		}
		if err != nil {
			return fmt.Errorf("enter network namespace %s: %w", name, err)
		}
		return f()
	})
}

// onThread runs f on a thread that ends with it, as f changes its namespaces.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if unix.Gettid() != unix.Getpid() {
			done <- f()
			return
		}
		// The main thread cannot end, and its namespaces are those of process 1.
		// While it is locked here, f gets another one.
		defer runtime.UnlockOSThread()
		done <- onThread(f)
	}()
	return <-done
}

// connect makes the node's network namespace, with a device on the bridge.
func (n *Node) connect() error {
	ip, exec := "ip -n "+n.Name+" ", "ip netns exec "+n.Name+" "
	commands := []string{
		"ip netns add " + n.Name,
		ip + "link set lo up",
		ip + "link add " + nodeDevice + " type veth peer name " + n.Name + " netns 1",
		"ip link set " + n.Name + " master " + clusterBridge + " up",
		ip + "addr add " + n.IP + "/24 dev " + nodeDevice,
		ip + "link set " + nodeDevice + " up",
		ip + "route add default via " + routerIP,
		exec + "sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1",
		// Pods leave the cluster with their node's address, as with kindnet and
		// ip-masq-agent. The plugin's own ipMasq would translate also what goes
		// to pods of other nodes, as it knows the network of one node only.
		exec + "iptables -t nat -A POSTROUTING -s " + podsCIDR + " ! -d " + podsCIDR + " -j MASQUERADE",
		// The router knows the way to pods, so that the server would also answer
		// a pod that leaves with its own address, and the tests would see it.
		"ip route replace " + n.PodCIDR + " via " + n.IP,
	}
	// The way to pods of other nodes: no overlay, as with flannel's host-gw.
	for _, peer := range n.cluster.Nodes {
		if peer != n {
			commands = append(commands, ip+"route add "+peer.PodCIDR+" via "+peer.IP)
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
		if _, err := net.InterfaceByName(n.Name); err == nil {
			return errors.New("its device is still there")
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
