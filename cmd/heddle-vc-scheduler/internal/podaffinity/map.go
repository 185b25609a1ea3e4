package podaffinity

import (
	"context"
	"sync"

	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// DefaultMap is where heddle's chart has topo-master, installed in heddle-system.
const DefaultMap = "http://heddle-topo-master.heddle-system.svc:9001/node_group"

// topologyMap is the client of topo-master. It outlives sessions, which see its last
// good answer and never wait for another.
type topologyMap struct {
	mu      sync.Mutex
	options topologyclient.Options
	client  *topologyclient.Client
	stop    context.CancelFunc
}

// poll returns the last answer and the last error; it begins to ask when the options
// are others than before.
func (m *topologyMap) poll(ctx context.Context, options topologyclient.Options) (topologyclient.Tree, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.client == nil || m.options != options {
		if m.stop != nil {
			m.stop()
		}
		m.options, m.client = options, topologyclient.New(options)
		ctx, m.stop = context.WithCancel(ctx)
		go m.client.Run(ctx)
	}
	return m.client.Current()
}
