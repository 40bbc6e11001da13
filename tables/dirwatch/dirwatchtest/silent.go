// SPDX-License-Identifier: Apache-2.0

// Package dirwatchtest stands in for inotify.
package dirwatchtest

import "github.com/fsnotify/fsnotify"

// Silent is a watcher that sends no events. Err is why it cannot, if it says so.
type Silent struct{ Err error }

// Watch implements [dirwatch.Watcher].
func (s Silent) Watch(string) error { return s.Err }

// Events implements [dirwatch.Watcher].
func (Silent) Events() <-chan fsnotify.Event { return nil }

// Errors implements [dirwatch.Watcher].
func (Silent) Errors() <-chan error { return nil }

// Close implements [dirwatch.Watcher].
func (Silent) Close() error { return nil }
