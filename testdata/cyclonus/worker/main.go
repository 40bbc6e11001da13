// SPDX-License-Identifier: Apache-2.0

// Command worker is what cyclonus runs in a pod: it makes the connections that
// it is told to, all at once, and writes which succeed. The worker of Cyclonus
// starts agnhost connect for each, which takes minutes of a busy processor for
// the 324 connections of a probe; this one does the same in one process.
//
//	worker --jobs JSON
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/mattfenwick/cyclonus/pkg/worker"
)

// Of the worker of Cyclonus: the time for a connection and its answer, and how
// often one that fails is tried.
const (
	timeout = time.Second
	tries   = 2
)

func main() {
	if len(os.Args) != 3 || os.Args[1] != "--jobs" {
		fail(fmt.Errorf("want --jobs JSON"))
	}
	var batch worker.Batch
	if err := json.Unmarshal([]byte(os.Args[2]), &batch); err != nil {
		fail(err)
	}
	results := make([]worker.Result, len(batch.Requests))
	var connections sync.WaitGroup
	for i, request := range batch.Requests {
		connections.Go(func() { results[i] = issue(request) })
	}
	connections.Wait()
	text, err := json.Marshal(results)
	if err != nil {
		fail(err)
	}
	fmt.Println(string(text))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "worker:", err)
	os.Exit(1)
}

func issue(request *worker.Request) worker.Result {
	result := worker.Result{Request: request}
	for range tries {
		err := connect(strings.ToLower(string(request.Protocol)), request.Address())
		if err == nil {
			result.Error = ""
			break
		}
		result.Error = err.Error()
	}
	return result
}

// connect does what agnhost connect does: over TCP it connects, over UDP it
// waits for an answer.
func connect(protocol, address string) error {
	conn, err := net.DialTimeout(protocol, address, timeout)
	if err != nil || protocol == "tcp" {
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(conn, "hostname"); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1024))
	return err
}
