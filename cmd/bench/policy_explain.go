// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/tables/explain"
)

// explainClients ask at the same time, each by a connection of its own.
const explainClients = 8

// explainResult is what questions about packets cost, over the agent's socket. The
// clients are in this process, so they have a share of the time.
type explainResult struct {
	Clients   int           `json:"clients"`
	Questions int           `json:"questions"`
	PerSecond float64       `json:"perSecond"`
	P50       time.Duration `json:"p50ns"`
	P99       time.Duration `json:"p99ns"`
	CPU       time.Duration `json:"cpuns"` // of the process, a question
}

// question is about a packet between pods, of which it is known what becomes.
type question struct {
	path string
	want explain.Verdict

	answer []byte
	took   time.Duration
}

// explain asks the agent what becomes of packets to pods of this node, some of them
// allowed, and checks the answers.
func (b *policyBench) explain(questions int) error {
	all := b.questions(questions)
	if len(all) == 0 {
		return nil
	}
	cpu, start := processTime(), time.Now()
	if err := askAll(b.w.socket, all); err != nil {
		return err
	}
	took, cpu := time.Since(start), processTime()-cpu
	times := make([]time.Duration, len(all))
	for i := range all {
		if err := all[i].check(); err != nil {
			return err
		}
		times[i] = all[i].took
	}
	slices.Sort(times)
	b.r.Explain = &explainResult{
		Clients: explainClients, Questions: len(all), PerSecond: float64(len(all)) / took.Seconds(),
		P50: times[len(times)/2], P99: times[len(times)*99/100], CPU: cpu / time.Duration(len(all)),
	}
	return nil
}

// askAll has clients ask one question after the other, until none is left.
func askAll(socket string, all []question) error {
	var next atomic.Int64
	var clients sync.WaitGroup
	errs := make([]error, explainClients)
	for n := range errs {
		clients.Go(func() {
			var conn net.Conn
			if conn, errs[n] = net.Dial("unix", socket); errs[n] != nil {
				return
			}
			defer conn.Close()
			reader := bufio.NewReader(conn)
			for i := next.Add(1); i <= int64(len(all)) && errs[n] == nil; i = next.Add(1) {
				errs[n] = all[i-1].ask(conn, reader)
			}
		})
	}
	clients.Wait()
	return errors.Join(errs...)
}

// ask asks by a connection, with as little work for the client as can be.
func (q *question) ask(w io.Writer, r *bufio.Reader) error {
	start := time.Now()
	if _, err := fmt.Fprintf(w, "GET %s HTTP/1.1\r\nHost: agent\r\n\r\n", q.path); err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	response, err := http.ReadResponse(r, nil)
	if err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	defer response.Body.Close()
	q.answer, err = io.ReadAll(response.Body)
	q.took = time.Since(start)
	return err
}

// check returns an error unless the tables and the maps answer as they should.
func (q *question) check() error {
	type judged struct{ Verdict explain.Verdict }
	var answer struct {
		judged
		Kernel judged
	}
	if err := json.Unmarshal(q.answer, &answer); err != nil {
		return fmt.Errorf("decode the agent's answer: %w", err)
	}
	if answer.Verdict != q.want || answer.Kernel.Verdict != q.want {
		return fmt.Errorf("%s: want %s, the answer is %s", q.path, q.want, q.answer)
	}
	return nil
}

// questions are about random pods of this node, and what is sent to them from
// others; each second one is about a peer and a port that a policy allows, if
// there is one. There are none if all pods are of this node.
func (b *policyBench) questions(n int) (all []question) {
	random := rand.New(rand.NewPCG(3, 4))
	local := b.w.scenario.locals()
	for len(all) < n && len(local) < b.w.scenario.identities {
		pod, peer, port, allowed := b.w.packet(random, len(all)%2 == 0)
		if local[peer] { // would be judged on its way out, too
			continue
		}
		verdict := explain.Denied
		if allowed {
			verdict = explain.Allowed
		}
		all = append(all, question{path: api.ExplainPolicyPath(podName(peer), podName(pod), fmt.Sprint(port)), want: verdict})
	}
	return all
}

func podName(i int) string { return labelledPod(i, "").Name.String() }

// packet returns a random packet to a pod of this node, on a port that one of its
// policies names, and whether policies allow it. If they are to, that is looked for.
func (w *policyWorld) packet(random *rand.Rand, allowed bool) (pod, peer int, port uint16, is bool) {
	pod, peer = w.scenario.localPod(random.IntN(w.scenario.local)), random.IntN(w.scenario.identities)
	at := w.scenario.policiesAt(placeOf(pod))
	if w.scenario.allPods || len(at) == 0 {
		return pod, peer, 80, true
	}
	p := at[random.IntN(len(at))]
	port = ingressPort(p)
	if allowed {
		peer = w.peerOf(p, random.IntN(w.scenario.identities))
	}
	is = slices.ContainsFunc(at, func(p int) bool { return port == ingressPort(p) && peersOf(p).has(peer) })
	return pod, peer, port, is
}
