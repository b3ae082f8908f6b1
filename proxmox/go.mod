module github.com/nstance-go/nstance/proxmox

go 1.26.0

replace github.com/nstance-go/nstance => ../

require (
	github.com/luthermonson/go-proxmox v0.3.2
	github.com/nstance-go/nstance v0.3.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/buger/goterm v1.0.4 // indirect
	github.com/diskfs/go-diskfs v1.5.0 // indirect
	github.com/djherbis/times v1.6.0 // indirect
	github.com/go-jose/go-jose/v4 v4.1.8 // indirect
	github.com/gorilla/websocket v1.5.4-0.20250319132907-e064f32e3674 // indirect
	github.com/jinzhu/copier v0.3.4 // indirect
	github.com/klauspost/compress v1.20.1 // indirect
	github.com/magefile/mage v1.14.0 // indirect
	github.com/tailscale/hujson v0.0.0-20260727124030-b80ff77dac4f // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)
