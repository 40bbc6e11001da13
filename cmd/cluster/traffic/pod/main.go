// SPDX-License-Identifier: Apache-2.0

// Command pod is what runs in pods of the cluster's tests:
//
//	pod pause                    wait for a signal, as the sandbox of a pod
//	pod serve                    answer who asks
//	pod send [FLAGS] SERVER:PORT ask, each time over a new connection
//	pod hold [FLAGS] SERVER:PORT ask over one connection or several; end when one fails
//	pod sweep PREFIX:PORT ...    send datagrams to all addresses of prefixes of IPv4
package main

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
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
	case "sweep":
		return sweep(args[1:])
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
	flags.BoolVar(&client.Insist, "insist", false, "have send count requests with an answer only")
	connections := flags.Int("connections", 1,
		"number of connections of hold; of several, each has a name of its own")
	listen := flags.Duration("listen", 0,
		"have send serve, too, until this long after its requests, and then write what it has received")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("want one SERVER:PORT")
	}
	client.Server, client.Protocols = flags.Arg(0), strings.Split(*protocols, ",")
	switch {
	case command == "hold" && *connections == 1:
		return client.Hold()
	case command == "hold":
		return client.HoldAll(*connections)
	}
	if *listen == 0 {
		client.Send(*count)
		return nil
	}
	server, err := traffic.Listen()
	if err != nil {
		return err
	}
	client.Send(*count)
	time.Sleep(*listen)
	for _, request := range server.Requests("") {
		fmt.Println("received", request.Protocol, request.From, request.Text)
	}
	return nil
}

func sweep(args []string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	var prefixes []netip.Prefix
	var port uint16
	for _, arg := range args {
		text, number, _ := strings.Cut(arg, ":")
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return err
		}
		parsed, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return err
		}
		prefixes, port = append(prefixes, prefix), uint16(parsed)
	}
	return traffic.Sweep(name, prefixes, port)
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
