// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// envConnections is how many TCP connections are there when a gateway loses its power.
const envConnections = "SLUICE_TEST_CONNECTIONS"

// connections are TCP connections of the pod, by the egress address that they leave with.
type connections map[netip.Addr][]net.Conn

// connect opens so many connections with each egress address.
func (m *moving) connect(count int) connections {
	m.t.Helper()
	all := connections{}
	for _, addr := range movings {
		for range count {
			all[addr] = append(all[addr], m.dial(m.pod.Namespace, "tcp", serverFor(addr)))
		}
	}
	m.goOn(all)
	return all
}

// goOn fails the test unless each connection carries a question and its answer, with the egress
// address that it began with.
func (m *moving) goOn(all connections) {
	m.t.Helper()
	for addr, conns := range all {
		for i, conn := range conns {
			source, err := m.askOn(conn)
			require.NoError(m.t, err, "connection %d with %s", i, addr)
			require.Equal(m.t, addr, source, "connection %d", i)
		}
	}
}

// askAll asks by all connections at the same moment, and returns after how long each had its
// answer. The test fails if one ends, or has another egress address than it began with.
func (m *moving) askAll(all connections) (took times) {
	m.t.Helper()
	type answer struct {
		took time.Duration
		err  error
	}
	answers, begin, count := make(chan answer), time.Now(), 0
	for addr, conns := range all {
		for i, conn := range conns {
			count++
			go func() {
				source, err := m.askOn(conn)
				if err == nil && source != addr {
					err = fmt.Errorf("it has %s", source)
				}
				if err != nil {
					err = fmt.Errorf("connection %d with %s: %w", i, addr, err)
				}
				answers <- answer{time.Since(begin), err}
			}()
		}
	}
	var errs []error
	for range count {
		a := <-answers
		took, errs = append(took, a.took), append(errs, a.err)
	}
	require.NoError(m.t, errors.Join(errs...))
	return took
}

// powerOff has a node say nothing more, neither to others nor to the world; powerOn undoes it.
func (m *moving) powerOff(n *Node) {
	m.t.Helper()
	m.cut(n)
	port, err := m.fabric.link(n.Name + "-" + n.EgressDevice())
	require.NoError(m.t, err)
	require.NoError(m.t, m.fabric.handle.LinkSetNoMaster(port))
	m.pause(n)
}

func (m *moving) powerOn(n *Node) {
	m.t.Helper()
	require.NoError(m.t, m.fabric.plug(n.Name+"-"+n.EgressDevice(), outsideBridge))
	m.plugIn(n)
	m.resume(n)
}

// TestTrafficEgressIPConnections: connections go on when the gateway that they leave by is drained,
// when it loses its power, and when it comes back.
func TestTrafficEgressIPConnections(t *testing.T) {
	t.Parallel()
	count := 50
	if text := os.Getenv(envConnections); text != "" {
		var err error
		count, err = strconv.Atoi(text)
		require.NoError(t, err, envConnections)
	}
	m := newMoving(t, 225*time.Millisecond)
	m.chat()
	all := m.connect(count)
	from := m.owner(moving4)
	to := m.other(from)
	t.Logf("all of %d connections have answers: %s", 2*count, m.askAll(all))
	for _, change := range []struct {
		what string
		make func()
		to   *Node
	}{
		{"drained", func() { m.change(from, func(s *nodeState) { s.drained = true }) }, to},
		{"back", func() { m.change(from, func(s *nodeState) { s.drained = false }) }, from},
		{"without power", func() { m.powerOff(from) }, to},
		{"power is back", func() { m.powerOn(from) }, from},
	} {
		change.make()
		took := m.askAll(all)
		for _, addr := range movings {
			m.carries(addr, change.to)
		}
		m.goOn(all)
		m.goOn(m.connect(3))
		m.invariant()
		t.Logf("%s: %d connections go on by %s, and have answers after: %s",
			change.what, 2*count, change.to.Name, took)
	}
}

// TestTrafficEgressIPOfGateway: connections of a pod that is on a gateway go on when the address
// leaves its node, and when it comes back.
func TestTrafficEgressIPOfGateway(t *testing.T) {
	t.Parallel()
	m := newMoving(t, time.Second)
	from := m.owner(moving4)
	m.pod = m.traffic.pod(from, "b", "a")
	m.inForce([]string{"ip32", "ip128"}, m.pod)
	m.chat()
	for _, addr := range movings {
		m.carries(addr, from)
	}
	all := m.connect(10)
	for _, drained := range []bool{true, false} {
		m.change(from, func(s *nodeState) { s.drained = drained })
		n := from
		if drained {
			n = m.other(from)
		}
		for _, addr := range movings {
			m.carries(addr, n)
		}
		m.goOn(all)
		m.invariant()
		t.Log(fmt.Sprintf("drained: %t", drained), "by", n.Name)
	}
}
