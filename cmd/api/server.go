// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
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
)

// Server is the HTTP server of the agent.
type Server struct {
	log        *slog.Logger
	health     cell.Health
	shutdowner hive.Shutdowner
	config     Config
	handlers   *handlers

	cancel  context.CancelFunc // ends the requests that stream
	serving sync.WaitGroup
	servers []*http.Server
	addr    net.Addr
}

// URL returns where the API is reached by TCP, "" if it is not. The port is the
// one that was chosen if --api-listen left it to the kernel. It is for callers
// that run after the start.
func (s *Server) URL() string {
	if s.addr == nil {
		return ""
	}
	return "http://" + s.addr.String()
}

// Socket returns the path of the UNIX socket, "" for none.
func (s *Server) Socket() string { return s.config.Socket }

func (s *Server) start(cell.HookContext) error {
	var tcp, local net.Listener
	var err error
	if s.config.APIListen != "" {
		if tcp, err = listenTCP(s.config.APIListen); err != nil {
			return err
		}
		s.addr = tcp.Addr()
		if !loopback(s.config.APIListen) {
			s.log.Warn("The API is open to other machines: it has no authentication and shows the state of the cluster",
				"address", s.addr)
		}
	}
	if s.config.Socket != "" {
		if local, err = listenUnix(s.config.Socket); err != nil {
			if tcp != nil {
				tcp.Close()
			}
			return err
		}
	}

	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	if tcp != nil {
		s.serve(ctx, tcp, s.handlers.mux(false))
	}
	if local != nil {
		s.serve(ctx, local, s.handlers.mux(true))
	}
	s.health.OK(fmt.Sprintf("Listening on %s %s", s.config.APIListen, s.config.Socket))
	return nil
}

func listenTCP(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("listen on %s: %w: does another agent run? --api-listen chooses another address", address, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on --api-listen: %w", err)
	}
	return l, nil
}

func (s *Server) serve(ctx context.Context, l net.Listener, h http.Handler) {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
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

func (s *Server) stop(ctx cell.HookContext) error {
	s.cancel()
	var errs error
	for _, srv := range s.servers {
		if err := srv.Shutdown(ctx); err != nil {
			errs = errors.Join(errs, fmt.Errorf("stop the API: %w", err), srv.Close())
		}
	}
	s.serving.Wait()
	s.servers, s.addr = nil, nil
	return errs
}
