package server

import "context"

// Watch wakes the plugin on changes of its kubelet's directory, as the agent does for all
// resources at once.
func (p *Plugin) Watch(ctx context.Context) { WatchDir(ctx, p.options.KubeletDir, p.retry, p.log) }
