// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	talkPort = 7777 // where talkers listen, and the port that they send from
	askPort  = 7778 // the same of the talker that asks: answers to a node always pass

	zeroPeerWord = "peer"
	zeroQuestion = "question"
	zeroAnswer   = "answer of " // and the word of the talker that answers
)

// talker sends a word to addresses from one UDP socket, again and again, and records
// what it hears. It answers questions.
type talker struct {
	word  string
	pause time.Duration // between two rounds of words, after the first ones

	conn        *net.UDPConn
	stop        chan struct{}
	all         sync.WaitGroup
	sent, heard atomic.Uint64 // datagrams

	mu    sync.Mutex
	words map[string]map[netip.Addr]int // datagrams heard, by word and source
}

// startTalker starts a talker that listens in a namespace.
func startTalker(n *Namespace, word string, port int, pause time.Duration) (*talker, error) {
	k := &talker{
		word: word, pause: pause,
		stop: make(chan struct{}), words: map[string]map[netip.Addr]int{},
	}
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

// say sends the word to addresses until the talker is closed, most often in the beginning.
func (k *talker) say(to ...netip.Addr) {
	k.all.Go(func() {
		for pause := time.Millisecond; ; pause = min(pause+time.Millisecond, k.pause) {
			for _, addr := range to {
				k.send(k.word, netip.AddrPortFrom(addr, talkPort))
			}
			select {
			case <-k.stop:
				return
			case <-time.After(pause):
			}
		}
	})
}

// send ignores errors: the address may have no route and no neighbor yet.
func (k *talker) send(word string, to netip.AddrPort) {
	if _, err := k.conn.WriteToUDPAddrPort([]byte(word), to); err == nil {
		k.sent.Add(1)
	}
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
				continue // an ICMP error about a datagram that was sent
			}
		}
		word := string(buffer[:n])
		k.record(word, from.Addr().Unmap())
		if word == zeroQuestion {
			k.send(zeroAnswer+k.word, from)
		}
	}
}

func (k *talker) record(word string, source netip.Addr) {
	k.heard.Add(1)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.words[word] == nil {
		k.words[word] = map[netip.Addr]int{}
	}
	k.words[word][source]++
}

func (k *talker) close() {
	close(k.stop)
	k.conn.Close()
	k.all.Wait()
}

// sources counts the datagrams with a word, by their sources.
func (k *talker) sources(word string) map[netip.Addr]int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.words[word])
}
