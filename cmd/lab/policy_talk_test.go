// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
)

// talk is a connection over which something is said all the time.
type talk struct {
	call
	port uint16 // of the client
	conn net.Conn
	stop chan struct{}
	done sync.WaitGroup

	heard atomic.Uint64 // answers, or bytes of a download
}

// begin connects and keeps asking. It fails the test if there is no answer.
func (p *policyTest) begin(c call) *talk {
	p.t.Helper()
	k := p.connect(c)
	k.done.Go(func() {
		question := []byte("who\n")
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for {
			_, _ = k.conn.Write(question) // of a datagram an error may be of a former one
			select {
			case <-k.stop:
				return
			case <-ticker.C:
			}
		}
	})
	k.done.Go(func() {
		read := func() error { _, err := readLine(k.conn); return err }
		if c.network == "udp" {
			buffer := make([]byte, 64)
			read = func() error { _, err := k.conn.Read(buffer); return err }
		}
		for read() == nil {
			k.heard.Add(1)
		}
	})
	p.goesOn(k)
	return k
}

// download connects and reads what the server sends without an end: the client says
// nothing but that it has got it.
func (p *policyTest) download(c call) *talk {
	p.t.Helper()
	k := p.connect(c)
	_, err := fmt.Fprintf(k.conn, "give %d\n", int64(1)<<40)
	require.NoError(p.t, err)
	k.done.Go(func() {
		in, buffer := bufio.NewReader(k.conn), make([]byte, 4096)
		for { // not as fast as the machine can
			n, err := io.ReadFull(in, buffer)
			k.heard.Add(uint64(n))
			if err != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	p.goesOn(k)
	return k
}

func (p *policyTest) connect(c call) *talk {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	conn, err := c.from.Dial(ctx, c.network, netip.AddrPortFrom(c.to.addr(c.v6), c.port))
	require.NoError(p.t, err, "%s", c)
	if tcp, is := conn.(*net.TCPConn); is {
		require.NoError(p.t, tcp.SetReadBuffer(64<<10))
	}
	k := &talk{call: c, port: sourceOf(conn.LocalAddr()).Port(), conn: conn, stop: make(chan struct{})}
	p.t.Cleanup(k.close)
	return k
}

// close ends the connection; once more is no error.
func (k *talk) close() {
	select {
	case <-k.stop:
	default:
		close(k.stop)
	}
	_ = k.conn.Close()
	k.done.Wait()
}

// dropped reports whether a drop is of this very connection, in either direction.
func (k *talk) dropped(e dropEvent) bool {
	return k.asked(e) || k.call.replyDropped(e) && e.Destination.Port == k.port
}

// asked reports whether a drop is of what the client has sent.
func (k *talk) asked(e dropEvent) bool { return k.call.dropped(e) && e.Source.Port == k.port }

// goesOn waits until there are further answers.
func (p *policyTest) goesOn(k *talk) {
	p.t.Helper()
	more := k.heard.Load() + 3
	p.eventually(k.String()+" goes on", func() error {
		if n := k.heard.Load(); n < more {
			return fmt.Errorf("%d of %d answers", n, more)
		}
		return nil
	})
}

// cut waits until packets of the connection are dropped and nothing is answered any more,
// and asserts that the drops have the reason. What was on its way with the first drop may
// still come: how long the client takes to read that, depends on the machine.
func (p *policyTest) cut(k *talk, position int, want verdict) (first dropEvent) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	const pause = 150 * time.Millisecond // TCP sends again after more
	var heard uint64
	for drops := 0; ; {
		e, err := p.drops.next(ctx, position, k.dropped)
		require.NoError(p.t, err, "%s: drop %d", k, drops)
		require.Equal(p.t, want.reason, e.Reason, "%s: %s", k, e.text)
		if k.asked(e) { // the same pod drops what the other side goes on to say
			require.Equal(p.t, want.direction.String(), e.Direction, "%s: %s", k, e.text)
		}
		position = e.after
		switch before := heard; {
		case drops == 0:
			first = e
		case e.Time.Sub(first.Time) < pause*time.Duration(drops):
			continue
		default:
			if heard = k.heard.Load(); drops > 1 && heard == before {
				return first
			}
		}
		drops++
	}
}
