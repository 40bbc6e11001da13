// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sluice-net/sluice/sources/objects"
)

// silentRequest is a request that is given up when nothing of its answer comes for too long. An
// answer that is slow but comes is read to its end.
type silentRequest struct {
	ctx    context.Context
	hangUp context.CancelCauseFunc
	timer  *time.Timer
	most   time.Duration
}

// hangUpOnSilence sends a request, and bounds the silence before and within its answer.
func hangUpOnSilence(
	rt http.RoundTripper, req *http.Request, most time.Duration,
) (*http.Response, error) {
	ctx, hangUp := context.WithCancelCause(req.Context())
	s := &silentRequest{ctx: ctx, hangUp: hangUp, most: most}
	s.timer = time.AfterFunc(most, func() {
		hangUp(fmt.Errorf("the API server sends nothing for %s", most))
	})
	resp, err := rt.RoundTrip(req.WithContext(ctx))
	if err != nil {
		err = s.explain(err)
		s.end()
		return nil, err
	}
	resp.Body = &silentBody{resp.Body, s}
	return resp, nil
}

// explain returns why the request has ended.
func (s *silentRequest) explain(err error) error {
	if cause := context.Cause(s.ctx); cause != nil {
		return cause
	}
	return err
}

func (s *silentRequest) end() {
	s.timer.Stop()
	s.hangUp(nil)
}

type silentBody struct {
	io.ReadCloser
	request *silentRequest
}

// Read implements [io.Reader].
func (b *silentBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		return n, b.request.explain(err)
	}
	b.request.timer.Reset(b.request.most)
	return n, err
}

// Close implements [io.Closer].
func (b *silentBody) Close() error {
	defer b.request.end()
	return b.ReadCloser.Close()
}

// watch implements [api]. The API server ends a watch after the time that the options name. The
// agent ends one that goes on for longer: the server may be gone without a word.
func (s *server) watch(
	ctx context.Context, k *objects.Kind, opts metav1.ListOptions,
) (watch.Interface, error) {
	opts.Watch = true
	most := s.bounds.silence
	if opts.TimeoutSeconds != nil {
		most += time.Duration(*opts.TimeoutSeconds) * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	w, err := s.get(k, opts).Watch(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	return boundWatch{w, cancel}, nil
}

// boundWatch is a watch with a time.
type boundWatch struct {
	watch.Interface
	cancel context.CancelFunc
}

// Stop implements [watch.Interface].
func (w boundWatch) Stop() {
	w.Interface.Stop()
	w.cancel()
}
