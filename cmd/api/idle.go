// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net"
	"net/http"
	"sync"
)

// crowded is from how many connections of a listener on none is kept that does
// nothing: there shall be room for who comes next, such as the kubelet.
const crowded = maxConnections / 2

// idleConns closes connections that are kept for a next request when there are many.
type idleConns struct {
	mu   sync.Mutex
	open int
	idle map[net.Conn]struct{}
}

// changed is called with each new state of a connection: [http.Server.ConnState].
func (i *idleConns) changed(conn net.Conn, state http.ConnState) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.idle, conn)
	switch state {
	case http.StateNew:
		i.open++
		if i.open > crowded {
			for other := range i.idle {
				other.Close() // it is told as closed
				delete(i.idle, other)
				break
			}
		}
	case http.StateIdle:
		if i.open > crowded {
			conn.Close()
		} else {
			i.idle[conn] = struct{}{}
		}
	case http.StateClosed, http.StateHijacked:
		i.open--
	}
}
