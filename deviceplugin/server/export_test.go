package server

import "context"

// Watch wakes the plugin by its kubelet's directory, which the agent does for all
// resources at once.
func (p *Plugin) Watch(ctx context.Context) { WatchDir(ctx, p.options.KubeletDir, p.retry, p.log) }
