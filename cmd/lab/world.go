// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Port is where the server serves TCP and UDP.
const Port = 8000

const worldDevice = "eth0"

// World is everything outside the cluster: a router to which the nodes are
// connected, and in the same namespace a server that answers on every address
// of [WorldIPv4] and [WorldIPv6].
type World struct {
	*Namespace

	server  *server
	capture *worldCapture // nil with [Options.NoCapture]
}

// worldNetworks are the networks in which nodes and router reach each other.
func (c *Cluster) worldNetworks() (v4, v6 netip.Prefix) {
	if c.options.SingleInterface {
		return UnderlayIPv4, UnderlayIPv6
	}
	return OutsideIPv4, OutsideIPv6
}

func (c *Cluster) buildWorld() error {
	ns, err := newNamespace("world")
	if err != nil {
		return err
	}
	c.World = &World{Namespace: ns}
	// IPv6 asks for this before it answers from an address that no device has.
	if err := ns.Sysctl("net.ipv6.ip_nonlocal_bind=1"); err != nil {
		return err
	}
	bridge := outsideBridge
	if c.options.SingleInterface {
		bridge = switchBridge
	}
	if err := c.connect(ns, worldDevice, bridge); err != nil {
		return err
	}
	v4, v6 := c.worldNetworks()
	if err := ns.AddAddress(worldDevice, inNetwork(v4, routerHost), inNetwork(v6, routerHost)); err != nil {
		return err
	}
	for _, p := range []netip.Prefix{WorldIPv4, WorldIPv6} {
		if err := ns.addSpecialRoute(p, unix.RTN_LOCAL); err != nil {
			return err
		}
	}
	if !c.options.NoCapture {
		if c.World.capture, err = captureWorld(ns); err != nil {
			return err
		}
	}
	c.World.server, err = startServer(ns)
	return err
}

func (w *World) close() {
	if w.server != nil {
		w.server.close()
	}
	if w.capture != nil {
		w.capture.close()
	}
	w.Namespace.Close()
}

// Seen returns how many packets the world got, by what they were.
func (w *World) Seen() map[Flow]uint64 {
	if w.capture == nil {
		return nil
	}
	return w.capture.counts()
}

// Sources returns how many packets the world got from each address, of all
// protocols but those of the networks themselves: neighbour discovery and the like.
func (w *World) Sources() map[netip.Addr]uint64 {
	sources := map[netip.Addr]uint64{}
	for flow, packets := range w.Seen() {
		if !flow.housekeeping() {
			sources[flow.Source] += packets
		}
	}
	return sources
}

// Flow is what packets have in common.
type Flow struct {
	Protocol    uint8 // of IP
	ICMPType    uint8
	Source      netip.Addr
	Destination netip.Addr
}

func (f Flow) String() string {
	return "protocol " + strconv.Itoa(int(f.Protocol)) + " from " + f.Source.String() + " to " + f.Destination.String()
}

// housekeeping reports whether nodes send such a packet by themselves.
func (f Flow) housekeeping() bool {
	const routerSolicitation, redirect, mldReport = 133, 137, 143
	return f.Source.IsLinkLocalUnicast() || f.Destination.IsMulticast() || f.Source.IsUnspecified() ||
		f.Protocol == unix.IPPROTO_ICMPV6 && (f.ICMPType >= routerSolicitation && f.ICMPType <= redirect || f.ICMPType == mldReport)
}

// worldCapture counts what the world gets, and remembers the sources of pings.
type worldCapture struct {
	stop func()

	mu    sync.Mutex
	flows map[Flow]uint64
	pings map[string]netip.Addr // by payload
}

func captureWorld(ns *Namespace) (*worldCapture, error) {
	c := &worldCapture{flows: map[Flow]uint64{}, pings: map[string]netip.Addr{}}
	var err error
	c.stop, err = Capture(ns, worldDevice, c.take)
	return c, err
}

func (c *worldCapture) close() {
	if c.stop != nil {
		c.stop()
	}
}

func (c *worldCapture) take(p Packet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flows[Flow{p.Protocol, p.icmpType(), p.Source, p.Destination}]++
	if nonce, is := p.pingNonce(); is {
		c.pings[nonce] = p.Source
	}
}

func (c *worldCapture) counts() map[Flow]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	copied := make(map[Flow]uint64, len(c.flows))
	for flow, packets := range c.flows {
		copied[flow] = packets
	}
	return copied
}

func (c *worldCapture) pingSource(nonce string) (netip.Addr, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	source, seen := c.pings[nonce]
	return source, seen
}
