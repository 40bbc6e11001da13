// SPDX-License-Identifier: Apache-2.0

// Package dirwatchtest stands in for a kernel that has no inotify left.
package dirwatchtest

import "github.com/fsnotify/fsnotify"

// Failing is a watcher that can watch nothing.
type Failing struct{ Err error }

func (f Failing) Watch(string) error          { return f.Err }
func (Failing) Events() <-chan fsnotify.Event { return nil }
func (Failing) Errors() <-chan error          { return nil }
func (Failing) Close() error                  { return nil }
