// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// answerTimeout is how long a client waits for a connection, and for an answer.
const answerTimeout = 2 * time.Second

// Failed is the answer that Send writes for a request that had none.
const Failed = "failed"

// Send asks a server count times, or forever if count is 0: each time with a
// datagram, and with a connection of its own. To out it writes a line for each
// answer, SEQUENCE PROTOCOL ANSWER. The first datagram is the first thing that
// it does.
func Send(out io.Writer, server, name string, interval time.Duration, count int) {
	for sequence := 1; count == 0 || sequence <= count; sequence++ {
		for _, protocol := range []string{"udp", "tcp"} {
			answer, err := ask(protocol, server, fmt.Sprintf("%s %d", name, sequence))
			if err != nil {
				answer = Failed + ": " + err.Error()
			}
			fmt.Fprintln(out, sequence, protocol, answer)
		}
		time.Sleep(interval)
	}
}

func ask(protocol, server, request string) (answer string, err error) {
	conn, err := net.DialTimeout(protocol, server, answerTimeout)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return "", err
	}
	if protocol == "tcp" {
		request += "\n"
	}
	if _, err := io.WriteString(conn, request); err != nil {
		return "", err
	}
	buffer := make([]byte, 1500)
	n, err := conn.Read(buffer)
	return strings.TrimSpace(string(buffer[:n])), err
}

// Hold asks a server all the time over one connection, and writes as Send does.
// It returns when the connection fails.
func Hold(out io.Writer, server, name string, interval time.Duration) error {
	conn, err := net.DialTimeout("tcp", server, answerTimeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	answers := bufio.NewScanner(conn)
	for sequence := 1; ; sequence++ {
		if _, err := fmt.Fprintln(conn, name, sequence); err != nil {
			return err
		}
		if !answers.Scan() {
			return fmt.Errorf("no answer to %d: %w", sequence, answers.Err())
		}
		fmt.Fprintln(out, sequence, "tcp", answers.Text())
		time.Sleep(interval)
	}
}
