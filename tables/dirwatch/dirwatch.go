// SPDX-License-Identifier: Apache-2.0

// Package dirwatch follows a directory by inotify, as far as that is possible: a node has
// a limited number of inotify instances and watches, which other programs may have used
// up. Without it a directory is read each second.
package dirwatch

import (
	"fmt"
	"time"

	"github.com/fsnotify/fsnotify"
)

// PollTime is how often a directory is read that cannot be watched.
const PollTime = time.Second

// Watcher sends events of directories.
type Watcher interface {
	// Watch begins to watch a directory, or goes on. It is to be called before each time
	// that the directory is read: what could not be watched may be possible by now.
	Watch(dir string) error

	// Events and Errors are channels of [fsnotify.Watcher], nil while there is none.
	Events() <-chan fsnotify.Event
	Errors() <-chan error

	Close() error
}

// New returns a watcher of the kernel's.
func New() Watcher { return &inotify{} }

type inotify struct{ w *fsnotify.Watcher } // nil until there is one

func (n *inotify) Watch(dir string) (err error) {
	if n.w == nil {
		if n.w, err = fsnotify.NewWatcher(); err != nil {
			n.w = nil
			return fmt.Errorf("watch %s: %w", dir, err)
		}
	}
	if err := n.w.Add(dir); err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	return nil
}

func (n *inotify) Events() <-chan fsnotify.Event {
	if n.w == nil {
		return nil
	}
	return n.w.Events
}

func (n *inotify) Errors() <-chan error {
	if n.w == nil {
		return nil
	}
	return n.w.Errors
}

func (n *inotify) Close() error {
	if n.w == nil {
		return nil
	}
	return n.w.Close()
}
