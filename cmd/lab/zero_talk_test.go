// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// talkPort is where talkers listen, and where they send from; the one that asks has a port
// of its own, as what comes to it is of connections of the node.
const (
	talkPort = 7777
	askPort  = 7778
)

// talker sends words to others from one socket, again and again, and notes what it hears,
// from its first instant on. A question, which is of a node to its pod, it answers.
type talker struct {
	conn *net.UDPConn
	word string
	stop chan struct{}
	all  sync.WaitGroup

	mu    sync.Mutex
	heard map[string]map[netip.Addr]int // datagrams by their words and sources
}

const (
	zeroQuestion = "question"
	zeroAnswer   = "answer of "
)

// startTalker starts a talker in a namespace that says a word.
func startTalker(n *Namespace, word string, port int) (*talker, error) {
	k := &talker{word: word, stop: make(chan struct{}), heard: map[string]map[netip.Addr]int{}}
	err := n.Run(func() (err error) {
		k.conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: port})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("talk in %s: %w", n.Name, err)
	}
	k.all.Go(k.listen)
	return k, nil
}

// say has the word said to others until the talker is closed.
func (k *talker) say(to ...netip.Addr) {
	k.all.Go(func() {
		const pause = 3 * time.Millisecond
		ticker := time.NewTicker(pause)
		defer ticker.Stop()
		for {
			for _, addr := range to {
				// It is no matter whether it can be sent: no route, no neighbour.
				_, _ = k.conn.WriteToUDPAddrPort([]byte(k.word), netip.AddrPortFrom(addr, talkPort))
			}
			select {
			case <-k.stop:
				return
			case <-ticker.C:
			}
		}
	})
}

func (k *talker) listen() {
	buffer := make([]byte, 256)
	for {
		n, from, err := k.conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			select {
			case <-k.stop:
				return
			default:
				continue // what an ICMP error says of something sent
			}
		}
		word, source := string(buffer[:n]), from.Addr().Unmap()
		k.mu.Lock()
		if k.heard[word] == nil {
			k.heard[word] = map[netip.Addr]int{}
		}
		k.heard[word][source]++
		k.mu.Unlock()
		if word == zeroQuestion {
			_, _ = k.conn.WriteToUDPAddrPort([]byte(zeroAnswer+k.word), from)
		}
	}
}

func (k *talker) close() {
	close(k.stop)
	k.conn.Close()
	k.all.Wait()
}

// sources are those from which a word was heard.
func (k *talker) sources(word string) (addrs map[netip.Addr]int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	addrs = map[netip.Addr]int{}
	for a, n := range k.heard[word] {
		addrs[a] = n
	}
	return addrs
}

// families says of which families addresses are.
func families(addrs map[netip.Addr]int) (v4, v6 bool) {
	for a := range addrs {
		v4, v6 = v4 || a.Is4(), v6 || a.Is6()
	}
	return v4, v6
}

// connectTalking connects pods, each of which talks as soon as it can.
func (z *zero) connectTalking(specs []PodSpec) (pods []*zeroPod, err error) {
	var (
		all   sync.WaitGroup
		slots = make(chan struct{}, buildAtOnce)
		errs  = make([]error, len(specs))
	)
	pods = make([]*zeroPod, len(specs))
	for i, spec := range specs {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			pods[i], errs[i] = z.connectOne(spec)
		})
	}
	all.Wait()
	return pods, errors.Join(errs...)
}

func (z *zero) connectOne(spec PodSpec) (*zeroPod, error) {
	connected, err := z.ConnectPods(spec)
	if err != nil {
		return nil, err
	}
	p := &zeroPod{Pod: connected[0], kind: spec.Labels["app"]}
	if p.talker, err = startTalker(p.Namespace, spec.Name, talkPort); err != nil {
		return nil, err
	}
	p.talker.say(z.others...)
	return p, nil
}
