// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"

	"github.com/sluice-net/sluice/tables"
)

// Reasons of drops, as the agents tell them.
const (
	reasonDefault = "policy denied"         // nothing allows it
	reasonRule    = "policy denied by rule" // something denies it
)

// dropEvent is a drop that an agent told of.
type dropEvent struct {
	*tables.Event
	node  *Node
	text  string // as the agent wrote it
	after int    // position behind it
}

// dropWatch has all drops that the agents told of since it began.
type dropWatch struct {
	end  func()
	done sync.WaitGroup

	mu     sync.Mutex // of what follows
	events []dropEvent
	more   chan struct{} // closed at the next event
	err    error         // why it ended
}

// watchDrops follows the drops of nodes.
func watchDrops(nodes []*Node) (*dropWatch, error) {
	ctx, cancel := context.WithCancel(context.Background())
	w := &dropWatch{end: cancel, more: make(chan struct{})}
	for _, n := range nodes {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/monitor?kind=drop", nil)
		if err != nil {
			return nil, err
		}
		response, err := n.Agent.http.Do(request)
		if err != nil {
			w.close()
			return nil, err
		}
		w.done.Go(func() {
			defer response.Body.Close()
			err := w.read(n, bufio.NewScanner(response.Body))
			if ctx.Err() == nil {
				w.fail(fmt.Errorf("drops of %s: %w", n.Name, err))
			}
		})
	}
	return w, nil
}

func (w *dropWatch) close() {
	w.end()
	w.done.Wait()
}

func (w *dropWatch) read(n *Node, lines *bufio.Scanner) error {
	for lines.Scan() {
		e := &tables.Event{}
		if err := json.Unmarshal(lines.Bytes(), e); err != nil {
			return err
		}
		if e.Kind == "" {
			continue // nothing for a while
		}
		w.mu.Lock()
		w.events = append(w.events, dropEvent{e, n, lines.Text(), len(w.events) + 1})
		w.wake()
		w.mu.Unlock()
	}
	return fmt.Errorf("the agent ended it: %w", lines.Err())
}

func (w *dropWatch) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	w.wake()
}

func (w *dropWatch) wake() {
	close(w.more)
	w.more = make(chan struct{})
}

// position is from where on to look for what comes from now on.
func (w *dropWatch) position() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.events)
}

// since returns the drops from a position on that match.
func (w *dropWatch) since(position int, match func(dropEvent) bool) (found []dropEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events[position:] {
		if match(e) {
			found = append(found, e)
		}
	}
	return found
}

// next waits for the first drop from a position on that matches.
func (w *dropWatch) next(ctx context.Context, position int, match func(dropEvent) bool) (dropEvent, error) {
	for {
		w.mu.Lock()
		more, events, err := w.more, w.events, w.err
		w.mu.Unlock()
		for ; position < len(events); position++ {
			if e := events[position]; match(e) {
				return e, nil
			}
		}
		if err != nil {
			return dropEvent{}, err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return dropEvent{}, fmt.Errorf("wait for a drop: %w", ctx.Err())
		}
	}
}
