// SPDX-License-Identifier: Apache-2.0

// Command pod is what runs in pods of the cluster's tests:
//
//	pod pause                    wait for a signal, as the sandbox of a pod
//	pod serve                    answer who asks
//	pod send [FLAGS] SERVER:PORT ask, each time over a new connection
//	pod hold [FLAGS] SERVER:PORT ask over one connection; end when it fails
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
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
		return errors.New("want pause, serve, send or hold")
	}
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-ends
		os.Exit(0)
	}()
	switch args[0] {
	case "pause":
		reap()
		return nil
	case "serve":
		if _, err := traffic.Listen(); err != nil {
			return err
		}
		select {}
	case "send", "hold":
		return ask(args[0], args[1:])
	}
	return fmt.Errorf("unknown command %q", args[0])
}

func ask(command string, args []string) error {
	name, err := os.Hostname() // of the pod
	if err != nil {
		return err
	}
	client := traffic.Client{Out: os.Stdout, Name: name}
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	flags.DurationVar(&client.Interval, "interval", 100*time.Millisecond, "time between requests")
	flags.DurationVar(&client.Timeout, "timeout", 2*time.Second, "time to wait for an answer")
	protocols := flags.String("protocols", "udp,tcp", "protocols of send")
	count := flags.Int("count", 0, "number of requests of send; 0: no end")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("want one SERVER:PORT")
	}
	client.Server, client.Protocols = flags.Arg(0), strings.Split(*protocols, ",")
	if command == "hold" {
		return client.Hold()
	}
	client.Send(*count)
	return nil
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
