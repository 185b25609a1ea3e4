package kubelet

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// maxList is the largest answer taken, in bytes, as in the kubelet's own
// client.
const maxList = 16 << 20

// Dial makes a client of the PodResources socket, such as
// /var/lib/kubelet/pod-resources/kubelet.sock. The socket need not be there
// yet, and may go and come: calls wait for it within their deadline.
func Dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(maxList)),
		// gRPC's own backoff grows to two minutes, longer than any kubelet's restart.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, MaxDelay: 250 * time.Millisecond},
			// A busy kubelet is slow to complete the HTTP/2 handshake.
			MinConnectTimeout: 5 * time.Second,
		}))
}

const (
	// listTimeout bounds one List; the kubelet's limit on PreStartContainer is
	// 30 s, and an error with the reason must come before that.
	listTimeout = 10 * time.Second
	// The kubelet admits 100 calls a second after a burst of 10, of all its
	// clients together, and rejects the rest with ResourceExhausted.
	firstRetry = 20 * time.Millisecond
	lastRetry  = 500 * time.Millisecond
	// The lister therefore asks less often by itself: callers that wait meanwhile
	// share the answer.
	listsPerSecond = 95
	listsAtOnce    = 8
)

// lister asks PodResources once for all callers that wait: a List serves those
// that asked before it began, and those that ask while it runs get the next.
// It never serves what began before the question, so that a container that was
// admitted before its PreStartContainer is in the answer.
type lister struct {
	client podresources.PodResourcesListerClient
	pace   *rate.Limiter

	mu      sync.Mutex      // guards all below
	waiting []chan<- listed // no List has begun for these yet
	// present counts those that wait for an answer.
	present int
	// served is closed when the goroutine in serve ends, nil if there is none.
	served chan struct{}
	// abandon ends the List under way.
	abandon context.CancelFunc
}

type listed struct {
	pods []*podresources.PodResources
	err  error
}

func newLister(client podresources.PodResourcesListerClient) *lister {
	return &lister{client: client, pace: rate.NewLimiter(listsPerSecond, listsAtOnce)}
}

// list returns the pods, or an error once ctx ends or the kubelet rejects the
// call.
func (l *lister) list(ctx context.Context) ([]*podresources.PodResources, error) {
	answer := make(chan listed, 1)
	l.mu.Lock()
	l.waiting = append(l.waiting, answer)
	l.present++
	if l.served == nil {
		l.served = make(chan struct{})
		// One caller's end must not take the answer from the others.
		go l.serve(context.WithoutCancel(ctx))
	}
	l.mu.Unlock()
	defer l.leave()
	select {
	case got := <-answer:
		return got.pods, got.err
	case <-ctx.Done():
		return nil, fmt.Errorf("kubelet PodResources has not answered: %w", context.Cause(ctx))
	}
}

// leave abandons the List under way when no caller waits for it any more.
func (l *lister) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.present--; l.present == 0 && l.abandon != nil {
		l.abandon()
	}
}

// wait returns once no goroutine is in serve.
func (l *lister) wait() {
	for {
		l.mu.Lock()
		served := l.served
		l.mu.Unlock()
		if served == nil {
			return
		}
		<-served
	}
}

// serve lists until no caller waits.
func (l *lister) serve(ctx context.Context) {
	for {
		l.mu.Lock()
		if len(l.waiting) == 0 {
			close(l.served)
			l.served, l.abandon = nil, nil
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		l.round(ctx)
	}
}

// round lists once for those that wait when the call begins that succeeds.
func (l *lister) round(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	_ = l.pace.Wait(ctx) // It has the time: listTimeout is much longer than a token takes.
	l.mu.Lock()
	batch := l.waiting
	l.waiting, l.abandon = nil, cancel
	abandoned := l.present == 0
	l.mu.Unlock()
	if abandoned {
		return
	}
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		response, err := l.client.List(ctx, &podresources.ListPodResourcesRequest{})
		if transient(err) && sleep(ctx, pause) {
			batch = l.join(ctx, batch)
			continue
		}
		got := listed{pods: response.GetPodResources()}
		if err != nil {
			got = listed{err: fmt.Errorf("list kubelet PodResources: %w", err)}
		}
		for _, answer := range batch {
			answer <- got
		}
		return
	}
}

// join adds the callers that came since. A caller that asks after the others
// have gone gets a List of its own.
func (l *lister) join(ctx context.Context, batch []chan<- listed) []chan<- listed {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() == nil {
		batch = append(batch, l.waiting...)
		l.waiting = nil
	}
	return batch
}

// transient reports whether to ask again: the kubelet has been asked too often,
// by any of its clients, or was stopped while it answered.
func transient(err error) bool {
	code := status.Code(err)
	return code == codes.ResourceExhausted || code == codes.Unavailable
}

// sleep reports whether ctx is still alive after d.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
