# cpu
