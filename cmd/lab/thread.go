// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// onThread runs f on a thread of its own, that ends with it: f may change the
// thread's namespaces.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if unix.Gettid() != unix.Getpid() {
			done <- f()
			return
		}
		// The main thread is what /proc/self tells of, and cannot end. While it
		// is locked here another one is taken.
		defer runtime.UnlockOSThread()
		done <- onThread(f)
	}()
	return <-done
}
