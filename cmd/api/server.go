// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"golang.org/x/sys/unix"
)

// Limits of what a client can make the agent hold.
const (
	readHeaderTimeout = 5 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 64 << 10
	maxConnections    = 1024 // of a listener; the oldest makes room for the next
)

// Server is the HTTP server of the agent.
type Server struct {
	log        *slog.Logger
	health     cell.Health
	shutdowner hive.Shutdowner
	config     Config
	handlers   *handlers

	headerTimeout  time.Duration // for a client to send the headers of a request
	maxConnections int           // of a listener

	cancel  context.CancelFunc // ends the requests that stream
	serving sync.WaitGroup
	servers []*http.Server
	addr    net.Addr
	metrics net.Addr
}

// URL returns where the API is reached by TCP, "" if it is not. The port is the
// one that was chosen if --api-listen left it to the kernel. It is for callers
// that run after the start.
func (s *Server) URL() string { return urlOf(s.addr) }

// MetricsURL returns where --metrics-listen is served, as [Server.URL] does.
func (s *Server) MetricsURL() string { return urlOf(s.metrics) }

func urlOf(addr net.Addr) string {
	if addr == nil {
		return ""
	}
	return "http://" + addr.String()
}

// Socket returns the path of the UNIX socket, "" for none.
func (s *Server) Socket() string { return s.config.Socket }

// start listens, and answers probes.
func (s *Server) start(cell.HookContext) error {
	listeners, err := s.listen()
	if err != nil {
		return err
	}
	if s.addr != nil && !loopback(s.config.APIListen) {
		s.log.Warn("The API is open to other machines: it has no authentication and shows the state of the cluster",
			"address", s.addr)
	}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	for _, l := range listeners {
		s.serve(ctx, l.Listener, l.handler)
	}
	return nil
}

// begin answers all requests from now on.
func (s *Server) begin(cell.HookContext) error {
	close(s.handlers.begun)
	s.health.OK(strings.Join(strings.Fields(fmt.Sprintf("Listening on %s %s %s", s.config.APIListen, s.config.MetricsListen, s.config.Socket)), " "))
	return nil
}

// listener is one of the places where the API is served, and what is served there.
type listener struct {
	net.Listener
	handler http.Handler
}

// listen opens all that the flags name, or nothing.
func (s *Server) listen() (listeners []listener, err error) {
	defer func() {
		if err == nil {
			return
		}
		for _, l := range listeners {
			l.Close()
		}
	}()
	if s.config.APIListen != "" {
		l, err := listenTCP("--api-listen", s.config.APIListen)
		if err != nil {
			return listeners, err
		}
		s.addr = l.Addr()
		listeners = append(listeners, listener{l, s.handlers.checkHost(s.config.APIListen, s.handlers.whileStarting(s.handlers.mux(false)))})
	}
	if s.config.MetricsListen != "" {
		l, err := listenTCP("--metrics-listen", s.config.MetricsListen)
		if err != nil {
			return listeners, err
		}
		s.metrics = l.Addr()
		monitoring := s.handlers.withLimits(s.handlers.metricsLimits)
		listeners = append(listeners, listener{l, monitoring.checkHost(s.config.MetricsListen, monitoring.whileStarting(monitoring.metricsMux()))})
	}
	if s.config.Socket != "" {
		l, err := listenUnix(s.config.Socket)
		if err != nil {
			return listeners, err
		}
		owner := s.handlers.withLimits(s.handlers.socketLimits)
		listeners = append(listeners, listener{l, owner.whileStarting(owner.mux(true))})
	}
	return listeners, nil
}

func listenTCP(flag, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("listen on %s: %w: does another agent run? %s chooses another address", address, err, flag)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", flag, err)
	}
	return l, nil
}

func (s *Server) serve(ctx context.Context, l net.Listener, h http.Handler) {
	srv := &http.Server{
		ConnState:         newConnections(s.maxConnections).changed,
		Handler:           h,
		ReadHeaderTimeout: s.headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), // what clients do wrong
	}
	s.servers = append(s.servers, srv)
	s.serving.Go(func() {
		err := srv.Serve(l)
		if errors.Is(err, http.ErrServerClosed) {
			return
		}
		s.health.Degraded("Serving the API has ended", err)
		s.shutdowner.Shutdown(hive.ShutdownWithError(fmt.Errorf("serve the API on %s: %w", l.Addr(), err)))
	})
}

// stop ends what start began, the first of two times: before what the handlers use
// stops, or else if the start failed on its way.
func (s *Server) stop(ctx cell.HookContext) error {
	if s.cancel == nil {
		return nil
	}
	s.cancel()
	var errs error
	for _, srv := range s.servers {
		if err := srv.Shutdown(ctx); err != nil {
			errs = errors.Join(errs, fmt.Errorf("stop the API: %w", err), srv.Close())
		}
	}
	s.serving.Wait()
	s.cancel, s.servers, s.addr, s.metrics = nil, nil, nil, nil
	return errs
}
