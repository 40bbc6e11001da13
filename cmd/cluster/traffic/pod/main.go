// SPDX-License-Identifier: Apache-2.0

// Command pod is what runs in pods of the cluster's tests:
//
//	pod pause                             wait for a signal, as the sandbox of a pod
//	pod serve                             answer who asks
//	pod send SERVER:PORT INTERVAL COUNT   ask, each time over a new connection; COUNT 0: forever
//	pod hold SERVER:PORT INTERVAL         ask over one connection; end when it fails
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/sluice-net/sluice/cmd/cluster/traffic"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("want pause, serve, send or hold")
	}
	name, err := os.Hostname() // of the pod
	if err != nil {
		return err
	}
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-ends
		os.Exit(0)
	}()
	switch command, args := args[0], args[1:]; {
	case command == "pause" && len(args) == 0:
		reap()
		return nil
	case command == "serve" && len(args) == 0:
		if _, err := traffic.Listen(); err != nil {
			return err
		}
		select {}
	case command == "send" && len(args) == 3:
		interval, err := time.ParseDuration(args[1])
		if err != nil {
			return err
		}
		count, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		traffic.Send(os.Stdout, args[0], name, interval, count)
		return nil
	case command == "hold" && len(args) == 2:
		interval, err := time.ParseDuration(args[1])
		if err != nil {
			return err
		}
		return traffic.Hold(os.Stdout, args[0], name, interval)
	}
	return fmt.Errorf("unknown command: %q", args)
}

// reap waits for every process whose parent has ended, as process 1 of a pod
// with a shared PID namespace has to.
func reap() {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	for range children {
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
