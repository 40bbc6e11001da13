// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net"
	"net/http"
	"sync"
)

// connections bounds the open connections of a listener. Each new one is accepted at once,
// such as that of the kubelet's next probe. At the bound the oldest of those that wait for a
// request makes room, or the oldest of all if there are none.
type connections struct {
	most int

	mu     sync.Mutex
	opened uint64
	open   map[net.Conn]connection
}

// connection is what is known of an open connection.
type connection struct {
	number uint64 // in order of opening
	asked  bool   // a request is being answered
}

func newConnections(most int) *connections {
	return &connections{most: most, open: map[net.Conn]connection{}}
}

// changed is called with each new state of a connection: [http.Server.ConnState]. A
// connection is active once the headers of a request are read.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, isOpen := c.open[conn]
	switch state {
	case http.StateNew:
		if len(c.open) >= c.most {
			c.makeRoom()
		}
		c.opened++
		c.open[conn] = connection{number: c.opened}
	case http.StateActive, http.StateIdle:
		if isOpen { // and has not made room
			known.asked = state == http.StateActive
			c.open[conn] = known
		}
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
	}
}

func (c *connections) makeRoom() {
	var oldest net.Conn
	var first connection
	for conn, this := range c.open {
		if oldest == nil || this.before(first) {
			oldest, first = conn, this
		}
	}
	delete(c.open, oldest)
	oldest.Close() // the server is told, and ends what it does for it
}

func (a connection) before(b connection) bool {
	if a.asked != b.asked {
		return b.asked
	}
	return a.number < b.number
}
