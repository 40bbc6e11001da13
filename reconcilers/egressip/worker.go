// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"context"

	"github.com/sluice-net/sluice/bpf"
)

// worker does what may take long, one thing after the other, so that votes go on meanwhile: a
// change of addresses waits for all others that configure the network of the machine.
type worker struct {
	queue chan task
	done  chan<- func() // takes in what has come of a task
}

type task struct {
	do   func() error
	then func(error)
}

// newWorker returns a worker that takes a task of each address without anything having to wait.
func newWorker(done chan<- func()) *worker {
	return &worker{queue: make(chan task, bpf.EgressIPs), done: done}
}

// run does tasks until the context ends.
func (w *worker) run(ctx context.Context) {
	for {
		select {
		case t := <-w.queue:
			err := t.do()
			w.done <- func() { t.then(err) }
		case <-ctx.Done():
			return
		}
	}
}
